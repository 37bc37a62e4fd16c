//! The recipe, tried: the packages of a debug build are installed, started, upgraded and removed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::papers::{array, text_of};
use super::{
    Contents, MACHINES, Machine, debian, emptied, first_device, host_program, image, papers, tool,
    version,
};
use crate::Failure;
use crate::command::output;
use crate::console::Progress;
use crate::workspace::{Workspace, read};

/// The worst grade that the unit may have, in tenths: `systemd-analyze security`.
const WORST_GRADE: &str = "20";

/// Time in which the broker has to be ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Crates that the program has, and one that only its tests have.
const IN_BILL: [&str; 3] = ["rustls", "quinn-proto", "redb"];
const NOT_IN_BILL: &str = "proptest";

/// Result of the trial.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: u64,
    pub(crate) faults: Vec<String>,
}

impl Report {
    fn check(&mut self, name: &str, is_so: bool) {
        if is_so {
            self.passed += 1;
        } else {
            self.faults.push(format!("failed: {name}"));
        }
    }
}

/// A root directory with packages.
struct Root {
    folder: PathBuf,
}

/// Makes packages of a debug build and tries each.
pub(crate) fn check(workspace: &Workspace, progress: &mut Progress) -> Result<Report, Failure> {
    let mut report = Report::default();
    let folder = emptied(&workspace.target.join("package-check"))?;
    progress.busy("building");
    let built = host_program(workspace)?;
    let program = folder.join("sterna");
    tool(
        "binutils",
        Command::new("strip").arg("-o").arg(&program).arg(built),
    )?;
    let papers = papers::make(workspace, &program, &folder.join("papers"))?;
    let version = version(workspace)?;
    let debian = output(Command::new("dpkg").arg("--print-architecture"))?;
    let machine = MACHINES.into_iter().find(|it| it.debian == debian.trim());
    let machine = machine.ok_or_else(|| Failure(format!("no packages for {}", debian.trim())))?;
    let package = |version: &str| {
        let contents = contents(version, machine, &program, &papers);
        debian::make(workspace, &contents, &folder)
    };
    let next = format!("{version}+1");
    let packages = [package(&version)?, package(&next)?];
    unit(workspace, &mut report)?;
    progress.busy("installing");
    life(&folder, &packages, &mut report)?;
    progress.busy("the steps to the first device");
    let (steps, printed) = first_device::run(workspace, &packages[0], &folder)?;
    report.check("there are ten steps to the first device", steps == 10);
    let state = "devices/device1/state on\n";
    report.check("the first device is heard", printed.contains(state));
    let is_restored = printed.matches(state).count() == 2;
    report.check("a restored backup has the device's state", is_restored);
    progress.busy("the image");
    let contents = contents(&version, machine, &program, &papers);
    let manifest = image::manifest(workspace, &contents, &folder)?;
    let archive = image::archive(&[manifest], &version, &folder)?;
    unpack(&archive, &version, &folder, &mut report)?;
    let bill = papers::bill(workspace, &version, &folder)?;
    materials(&bill, &mut report)?;
    papers::checksums(&folder, &[archive, bill])?;
    let mut sums = Command::new("sha256sum");
    sums.args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(&folder);
    report.check("the checksums are right", output(&mut sums).is_ok());
    Ok(report)
}

const fn contents<'a>(
    version: &'a str,
    machine: Machine,
    program: &'a Path,
    papers: &'a Path,
) -> Contents<'a> {
    Contents {
        version,
        machine,
        program,
        papers,
        compression: ["-Zgzip", "-z1"],
        // The program of this check is not optimised: it has twice the size.
        max_layer_bytes: 2 * image::MAX_LAYER_BYTES,
    }
}

/// The grade of the unit's sandbox.
fn unit(workspace: &Workspace, report: &mut Report) -> Result<(), Failure> {
    let mut command = Command::new("systemd-analyze");
    command
        .args(["security", "--offline=true", "--no-pager"])
        .arg(format!("--threshold={WORST_GRADE}"))
        .arg(workspace.root.join("contrib/systemd/sterna.service"));
    // A missing program is no bad grade.
    output(Command::new("systemd-analyze").arg("--version"))?;
    report.check(
        "the unit's grade is at most 2.0",
        output(&mut command).is_ok(),
    );
    Ok(())
}

/// The life of an installation.
fn life(folder: &Path, packages: &[PathBuf; 2], report: &mut Report) -> Result<(), Failure> {
    let root = Root::new(&folder.join("root"))?;
    root.dpkg("--install", &packages[0])?;
    let link = root.path("etc/systemd/system/multi-user.target.wants/sterna.service");
    report.check("installed, the unit is enabled", link.is_symlink());
    let mode = fs::metadata(root.path("etc/sterna/secrets"))?
        .permissions()
        .mode();
    report.check("only root reads the secrets", mode & 0o7777 == 0o700);
    let page = root.path("usr/share/man/man1/sterna-serve.1.gz");
    let page = output(Command::new("gzip").arg("-dc").arg(page))?;
    report.check(
        "the page of `serve` names its flags",
        page.contains("ready"),
    );
    let script = root.path("usr/share/bash-completion/completions/sterna");
    let parsed = output(Command::new("bash").arg("-n").arg(&script)).is_ok();
    report.check(
        "the completions are a script",
        parsed && read(&script)?.contains("serve"),
    );
    // The other program that the unit names; its own root has it.
    fs::create_dir_all(root.path("bin"))?;
    symlink("/bin/true", root.path("bin/kill"))?;
    fs::copy("/bin/true", root.path("bin/true"))?;
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(format!("--root={}", root.folder.display()))
        .arg("/usr/lib/systemd/system/sterna.service");
    report.check(
        "the unit is accepted, its program is there",
        output(&mut verify).is_ok(),
    );

    let first = root.start()?;
    let retained = ["-t", "plant/state", "-m", "on", "-q", "1", "-r"];
    root.client("pub", &first.url, &retained)?;
    report.check(
        "stopped by the service manager's signal, it ends well",
        first.stop()?,
    );
    let configuration = root.path("etc/sterna/sterna.toml");
    let changed = format!("shards = 2\n{}", read(&configuration)?);
    fs::write(&configuration, &changed)?;
    root.dpkg("--install", &packages[1])?;
    report.check(
        "an upgrade keeps what was changed",
        read(&configuration)? == changed,
    );
    let second = root.start()?;
    let found = root.client(
        "sub",
        &second.url,
        &["-t", "plant/state", "-C", "1", "-W", "60"],
    )?;
    report.check("an upgrade keeps the messages", found == "on\n");
    report.check("upgraded, it ends well", second.stop()?);

    root.dpkg("--remove", Path::new("sterna"))?;
    let is_gone = !root.path("usr/bin/sterna").exists() && !link.is_symlink();
    report.check("removed, program and service are gone", is_gone);
    let is_kept = configuration.exists() && root.path("var/lib/private/sterna/store").exists();
    report.check("removed, configuration and messages are kept", is_kept);
    root.dpkg("--purge", Path::new("sterna"))?;
    let places = [
        "etc/sterna",
        "var/lib/private/sterna",
        "usr/share/doc/sterna",
    ];
    let left: Vec<&&str> = places
        .iter()
        .filter(|place| root.path(place).exists())
        .collect();
    report.check(
        &format!("purged, nothing is left: {left:?}"),
        left.is_empty(),
    );
    Ok(())
}

impl Root {
    /// A root without packages; `dpkg` keeps its books there.
    fn new(folder: &Path) -> Result<Self, Failure> {
        let root = Self {
            folder: emptied(folder)?,
        };
        for place in ["info", "updates", "triggers"] {
            fs::create_dir_all(root.path("var/lib/dpkg").join(place))?;
        }
        for file in ["status", "available"] {
            fs::write(root.path("var/lib/dpkg").join(file), "")?;
        }
        Ok(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Runs dpkg on the root. Its scripts run outside, as those of a new root do that has no shell yet.
    fn dpkg(&self, action: &str, package: &Path) -> Result<(), Failure> {
        let mut command = Command::new("dpkg");
        command
            .arg(format!("--root={}", self.folder.display()))
            .args([
                "--force-script-chrootless",
                "--force-depends",
                "--force-confold",
            ])
            .arg(action)
            .arg(package);
        tool("dpkg", &mut command).map(drop)
    }

    /// Starts the broker as the unit does, with the directory that systemd would give it.
    fn start(&self) -> Result<Service, Failure> {
        let unit = read(&self.path("usr/lib/systemd/system/sterna.service"))?;
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/"));
        let line = line.unwrap_or_default();
        let mut words = line.split(' ').map(|word| match word.strip_prefix('/') {
            Some(path) => self.path(path).into_os_string(),
            None => word.into(),
        });
        let program = self.folder.join(words.next().unwrap_or_default());
        let state = self.path("var/lib/private/sterna");
        if !state.exists() {
            fs::create_dir_all(&state)?;
            fs::set_permissions(&state, fs::Permissions::from_mode(0o700))?;
            symlink("private/sterna", self.path("var/lib/sterna"))?;
        }
        let notify = self.path("notify");
        let _ = fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify)?;
        socket.set_read_timeout(Some(READY_LIMIT))?;
        let ready = self.path("ready.json");
        let child = Command::new(program)
            .args(words)
            // The usual ports may be another broker's.
            .args(["--listen", "mqtt://127.0.0.1:0", "--ready-file"])
            .arg(&ready)
            .env_clear()
            .env("STATE_DIRECTORY", self.path("var/lib/sterna"))
            .env("NOTIFY_SOCKET", &notify)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut service = Service {
            child,
            url: String::new(),
        };
        let mut message = [0; 256];
        let length = socket.recv(&mut message)?;
        if !message[..length].starts_with(b"READY=1") {
            return Err(Failure::new("the broker did not say that it is ready"));
        }
        let ready: Value = serde_json::from_str(&read(&ready)?).unwrap_or_default();
        text_of(&ready["listeners"][0]["url"]).clone_into(&mut service.url);
        Ok(service)
    }

    fn client(&self, name: &str, url: &str, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(self.path("usr/bin/sterna"));
        output(command.args([name, "--url", url]).args(arguments))
    }
}

/// A broker that runs.
struct Service {
    child: Child,
    url: String,
}

impl Service {
    /// Stops it as systemd does, and says whether it ended in order.
    fn stop(mut self) -> Result<bool, Failure> {
        output(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        Ok(self.child.wait()?.success())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended, unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The image, unpacked by another program, and its program run.
fn unpack(
    archive: &Path,
    version: &str,
    folder: &Path,
    report: &mut Report,
) -> Result<(), Failure> {
    let layout = emptied(&folder.join("layout"))?;
    output(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&layout),
    )?;
    let bundle = folder.join("bundle");
    let mut umoci = Command::new("umoci");
    umoci
        .args(["unpack", "--rootless", "--image"])
        .arg(format!("{}:{version}", layout.display()))
        .arg(&bundle);
    tool("umoci", &mut umoci)?;
    let program = bundle.join("rootfs/usr/bin/sterna");
    let told = output(Command::new(&program).arg("--version"))?;
    report.check(
        "the image has the program",
        told.trim() == format!("sterna {version}"),
    );
    let configuration: Value =
        serde_json::from_str(&read(&bundle.join("config.json"))?).unwrap_or_default();
    let process = &configuration["process"];
    let is_serving = process["args"] == serde_json::json!(["/usr/bin/sterna", "serve"]);
    report.check("the image serves", is_serving);
    report.check(
        "the image's user is not root",
        process["user"]["uid"] == 65532,
    );
    let mut check = Command::new(&program);
    check.args(["config", "check", "--quiet"]);
    check.arg(bundle.join("rootfs/etc/sterna/sterna.toml"));
    check.env("STATE_DIRECTORY", bundle.join("rootfs/var/lib/sterna"));
    report.check(
        "the image's configuration is accepted",
        output(&mut check).is_ok(),
    );
    Ok(())
}

fn materials(bill: &Path, report: &mut Report) -> Result<(), Failure> {
    let bill: Value = serde_json::from_str(&read(bill)?).unwrap_or_default();
    let components = array(&bill["components"]);
    let has = |name: &str| components.iter().any(|it| it["name"] == name);
    report.check(
        "the bill has the libraries",
        IN_BILL.iter().all(|name| has(name)),
    );
    report.check("the bill has no library of tests", !has(NOT_IN_BILL));
    let is_complete = |it: &Value| {
        let is_own = text_of(&it["name"]).starts_with("sterna");
        !it["licenses"].is_null() && (is_own || !it["hashes"].is_null())
    };
    let incomplete = components.iter().find(|it| !is_complete(it));
    let incomplete = incomplete.map_or("", |it| text_of(&it["name"]));
    report.check(
        &format!("each has a licence and a checksum: {incomplete}"),
        incomplete.is_empty(),
    );
    Ok(())
}
