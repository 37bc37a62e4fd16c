//! `cargo xtask package`: static programs, Debian packages, an image, and their papers.

mod check;
mod debian;
mod first_device;
mod image;
mod papers;
mod tree;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::output;
use crate::console::Progress;
use crate::workspace::{Workspace, on_path, write};
use crate::{Failure, Verdict};

pub(crate) use check::check;

/// A machine that packages are made for.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// Rust's name.
    triple: &'static str,
    /// Debian's name.
    debian: &'static str,
    /// The image's name, and its variant.
    image: (&'static str, Option<&'static str>),
    /// The C compiler that can be had from Debian. Only the cryptography has C, and it uses no C library.
    c_compiler: &'static str,
}

const MACHINES: [Machine; 3] = [
    Machine {
        triple: "x86_64-unknown-linux-musl",
        debian: "amd64",
        image: ("amd64", None),
        c_compiler: "musl-gcc",
    },
    Machine {
        triple: "aarch64-unknown-linux-musl",
        debian: "arm64",
        image: ("arm64", Some("v8")),
        c_compiler: "aarch64-linux-gnu-gcc",
    },
    Machine {
        triple: "armv7-unknown-linux-musleabihf",
        debian: "armhf",
        image: ("arm", Some("v7")),
        c_compiler: "arm-linux-gnueabihf-gcc",
    },
];

const HELP: &str = "\
  cargo xtask package                 packages for every machine, in target/package
  cargo xtask package --target T      for one machine only; may be repeated
  cargo xtask package --profile P     another profile than `dist`
  cargo xtask package --check         packages of a debug build for this machine, installed and tried
";

/// Contents of the packages of a program.
struct Contents<'a> {
    version: &'a str,
    machine: Machine,
    /// The stripped program.
    program: &'a Path,
    /// The folder with files that are the same on every machine.
    papers: &'a Path,
    /// Options of dpkg-deb: small for others, quick for a trial.
    compression: [&'a str; 2],
    /// Largest layer of the image.
    max_layer_bytes: u64,
}

/// Makes the packages, or tries the recipe.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Verdict {
    let mut machines = Vec::new();
    let mut profile = "dist".to_owned();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--check" => return try_recipe(workspace),
            "--target" => {
                let triple = arguments.next().map_or("", String::as_str);
                let machine = MACHINES.into_iter().find(|it| it.triple == triple);
                machines.push(machine.ok_or_else(|| {
                    let known = MACHINES.map(|it| it.triple).join(", ");
                    Failure(format!("--target takes one of {known}"))
                })?);
            }
            "--profile" => profile = arguments.next().cloned().unwrap_or_default(),
            other => return Err(Failure(format!("unexpected argument `{other}`\n\n{HELP}"))),
        }
    }
    if machines.is_empty() {
        machines = MACHINES.to_vec();
    }
    check_tools(&machines)?;
    let folder = emptied(&workspace.target.join("package"))?;
    let papers = papers::make(workspace, &host_program(workspace)?, &folder.join("papers"))?;
    let version = version(workspace)?;
    let mut made = Vec::new();
    let mut images = Vec::new();
    for machine in machines {
        println!("{}", machine.triple);
        let program = build(workspace, machine, &profile)?;
        println!("  {}", trial::run(machine, &program, &folder)?);
        let contents = Contents {
            version: &version,
            machine,
            program: &program,
            papers: &papers,
            compression: ["-Zxz", "-z6"],
            max_layer_bytes: image::MAX_LAYER_BYTES,
        };
        made.push(tree::archive(workspace, &contents, &folder)?);
        made.push(debian::make(workspace, &contents, &folder)?);
        images.push(image::manifest(workspace, &contents, &folder)?);
    }
    made.push(image::archive(&images, &version, &folder)?);
    made.push(papers::bill(workspace, &version, &folder)?);
    papers::checksums(&folder, &made)?;
    for file in &made {
        let bytes = fs::metadata(file)?.len();
        println!("{:>10} kB  {}", bytes / 1000, workspace.name(file));
    }
    Ok(true)
}

fn try_recipe(workspace: &Workspace) -> Verdict {
    let mut progress = Progress::start("package");
    let report = check(workspace, &mut progress)?;
    for fault in &report.faults {
        println!("{fault}");
    }
    println!(
        "{} passed, {} failed, 0 skipped",
        report.passed,
        report.faults.len()
    );
    Ok(report.faults.is_empty())
}

/// Whether what the builds need is here: said before the first one begins.
fn check_tools(machines: &[Machine]) -> Result<(), Failure> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib");
    let mut missing = Vec::new();
    for Machine {
        triple, c_compiler, ..
    } in machines
    {
        if !libraries.join(triple).is_dir() {
            missing.push(format!(
                "Rust's library for {triple}: `rustup target add {triple}`"
            ));
        }
        if !on_path(c_compiler) {
            missing.push(format!("the C compiler for {triple}: {c_compiler}"));
        }
    }
    if !on_path("make") {
        missing.push("make, which builds the allocator".to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "missing:\n  {}\n`--target` makes the packages of other machines alone",
        missing.join("\n  ")
    )))
}

/// Builds the program for a machine, static and stripped.
fn build(workspace: &Workspace, machine: Machine, profile: &str) -> Result<PathBuf, Failure> {
    let Machine {
        triple, c_compiler, ..
    } = machine;
    let underscores = triple.replace('-', "_");
    let upper = |text: &str| text.to_uppercase();
    let mut cargo = workspace.cargo();
    cargo
        .args(["build", "--locked", "--package", "sterna", "--profile", profile])
        .args(["--target", triple])
        .env(format!("CC_{underscores}"), c_compiler)
        // The linker and the C library are Rust's own.
        .env(format!("CARGO_TARGET_{}_LINKER", upper(&underscores)), "rust-lld")
        .env(format!("CARGO_PROFILE_{}_STRIP", upper(profile)), "symbols");
    let status = cargo.status()?;
    if !status.success() {
        return Err(Failure(format!(
            "{triple}: the build failed; it needs {c_compiler}"
        )));
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(workspace.target.join(triple).join(folder).join("sterna"))
}

/// The program for this machine, which writes the papers.
fn host_program(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--package", "sterna"]);
    output(&mut cargo)?;
    Ok(workspace.target.join("debug/sterna"))
}

fn version(workspace: &Workspace) -> Result<String, Failure> {
    let program = output(Command::new(workspace.target.join("debug/sterna")).arg("--version"))?;
    let version = program.split_whitespace().nth(1).unwrap_or_default();
    Ok(version.to_owned())
}

/// A new folder in the place of an old one.
fn emptied(folder: &Path) -> Result<PathBuf, Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_path_buf())
}

/// Runs a tool of Debian's; the error says which package has it.
fn tool(package: &str, command: &mut Command) -> Result<String, Failure> {
    output(command).map_err(|Failure(why)| Failure(format!("{why} (Debian's package {package})")))
}

fn sha256(file: &Path) -> Result<String, Failure> {
    let line = output(Command::new("sha256sum").arg(file))?;
    Ok(line
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned())
}

fn write_json(file: &Path, value: &serde_json::Value) -> Result<(), Failure> {
    write(file, &format!("{value}\n"))
}
