//! The Debian package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Contents, tool, tree};
use crate::Failure;
use crate::command::output;
use crate::workspace::{Workspace, write};

/// Scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package of a program.
pub(super) fn make(
    workspace: &Workspace,
    contents: &Contents<'_>,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    let root = folder.join("debian");
    tree::install(contents, &root)?;
    let control = root.join("DEBIAN");
    fs::create_dir_all(&control)?;
    fs::create_dir_all(root.join("etc/sterna/secrets"))?;
    write(&control.join("conffiles"), "/etc/sterna/sterna.toml\n")?;
    for script in SCRIPTS {
        let from = workspace.root.join("contrib/debian").join(script);
        fs::copy(from, control.join(script))?;
    }
    let sums = "find . -type f -not -path './DEBIAN/*' -printf '%P\\0' | sort -z | xargs -0 md5sum";
    let sums = output(Command::new("sh").args(["-c", sums]).current_dir(&root))?;
    write(&control.join("md5sums"), &sums)?;
    let size = output(
        Command::new("du")
            .args(["-sk", "--apparent-size"])
            .arg(&root),
    )?;
    let size = size.split_whitespace().next().unwrap_or_default();
    let (version, debian) = (contents.version, contents.machine.debian);
    write(
        &control.join("control"),
        &format!(
            "Package: sterna\n\
             Version: {version}\n\
             Architecture: {debian}\n\
             Maintainer: the authors of Sterna <sterna@localhost>\n\
             Installed-Size: {size}\n\
             Depends: systemd (>= 247)\n\
             Section: net\n\
             Priority: optional\n\
             Description: message broker for MQTT, AMQP 1.0 and HTTP over QUIC, TLS and TCP\n\
             \x20A broker for devices on bad links, and its clients. A message that is published in one\n\
             \x20protocol is received in all others.\n"
        ),
    )?;
    let programs = [
        "usr/bin/sterna",
        "DEBIAN/postinst",
        "DEBIAN/prerm",
        "DEBIAN/postrm",
    ];
    tree::set_modes(&root, &programs)?;
    output(
        Command::new("chmod")
            .arg("700")
            .arg(root.join("etc/sterna/secrets")),
    )?;
    let file = folder.join(format!("sterna_{version}_{debian}.deb"));
    let mut build = Command::new("dpkg-deb");
    build
        .arg("--root-owner-group")
        .args(contents.compression)
        .arg("--build")
        .arg(&root)
        .arg(&file)
        .env("SOURCE_DATE_EPOCH", "0");
    tool("dpkg", &mut build)?;
    fs::remove_dir_all(&root)?;
    Ok(file)
}
