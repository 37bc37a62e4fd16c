//! Folders as archives: the same bytes for the same content.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Contents, emptied, tool};
use crate::Failure;
use crate::command::output;
use crate::workspace::Workspace;

/// Lays out an installation in a folder.
pub(super) fn install(contents: &Contents<'_>, folder: &Path) -> Result<(), Failure> {
    emptied(folder)?;
    copy_all(contents.papers, folder)?;
    fs::create_dir_all(folder.join("usr/bin"))?;
    fs::copy(contents.program, folder.join("usr/bin/sterna"))?;
    Ok(())
}

/// Copies the content of a folder.
pub(super) fn copy_all(from: &Path, to: &Path) -> Result<(), Failure> {
    output(Command::new("cp").arg("-r").arg(from.join(".")).arg(to)).map(drop)
}

/// Sets the modes of a folder's content: what others may read, and programs run.
pub(super) fn set_modes(folder: &Path, programs: &[&str]) -> Result<(), Failure> {
    output(
        Command::new("chmod")
            .args(["-R", "u=rwX,go=rX"])
            .arg(folder),
    )?;
    for program in programs {
        output(Command::new("chmod").arg("755").arg(folder.join(program)))?;
    }
    Ok(())
}

/// Packs a folder, without times and owners of this machine.
pub(super) fn pack(folder: &Path, file: &Path, options: &[&str]) -> Result<(), Failure> {
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--mtime=@0",
        "--numeric-owner",
        "--format=gnu",
    ])
    .args(options)
    .args(["--create", "--file"])
    .arg(file)
    .arg("--directory")
    .arg(folder)
    .arg(".");
    tool("tar", &mut tar).map(drop)
}

/// An archive of the program with its papers, for systems without packages.
pub(super) fn archive(
    workspace: &Workspace,
    contents: &Contents<'_>,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    let Contents {
        version, machine, ..
    } = contents;
    let name = format!("sterna-{version}-{}", machine.triple);
    let tree = workspace.target.join("package/archive");
    install(contents, &tree.join(&name))?;
    set_modes(&tree, &[&format!("{name}/usr/bin/sterna")])?;
    let file = folder.join(format!("{name}.tar"));
    pack(&tree, &file, &["--owner=0", "--group=0"])?;
    fs::remove_dir_all(&tree)?;
    compressed(&file)
}

/// Compresses a file in its place.
pub(super) fn compressed(file: &Path) -> Result<PathBuf, Failure> {
    output(Command::new("gzip").args(["-9nf"]).arg(file))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    Ok(PathBuf::from(name))
}
