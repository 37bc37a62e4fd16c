//! The steps of `docs/operations.md` from the package to the first device, each command as it is written
//! there. They run on a copy of this system that is gone afterwards, without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::tool;
use crate::Failure;
use crate::workspace::{Workspace, read, write};

/// The section of the page.
const SECTION: &str = "## From the package to the first device\n";

/// Makes a copy of the system: what is written goes to memory. It has no network but loopback, and no
/// processes but its own.
const WORLD: &str = r#"set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc proc /mnt/root/proc
mount --rbind /dev /mnt/root/dev
mount -t tmpfs tmpfs /mnt/root/run
mount -t tmpfs tmpfs /mnt/root/tmp
ip link set lo up
mkdir /mnt/root/tmp/steps
cp "$1"/* /mnt/root/tmp/steps
install -m 755 "$1/systemctl" /mnt/root/usr/local/sbin/systemctl
exec chroot /mnt/root env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    bash -e -c 'cd /tmp/steps && . ./steps'
"#;

/// What systemd would do with the unit: a user of its own, the state directory, the credentials. Nothing of
/// its sandbox.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -e
unit=/usr/lib/systemd/system/sterna.service
case "$1" in
restart)
    if [ -e /run/sterna.pid ]; then kill "$(cat /run/sterna.pid)"; fi
    credentials=/run/credentials/sterna.service
    mkdir -p -m 711 /run/credentials
    mkdir -p -m 700 "$credentials"
    source=$(sed -n 's/^LoadCredential=secrets://p' "$unit")
    for file in "$source"/*; do
        install -m 400 -o 61184 -g 61184 "$file" "$credentials/secrets_${file##*/}"
    done
    chown 61184:61184 "$credentials"
    install -d -m 700 -o 61184 -g 61184 /var/lib/private/sterna
    chmod 755 /var/lib/private
    ln -sfn private/sterna /var/lib/sterna
    setpriv --reuid 61184 --regid 61184 --clear-groups --no-new-privs --bounding-set=-all \
        env -i STATE_DIRECTORY=/var/lib/sterna CREDENTIALS_DIRECTORY="$credentials" \
        $(sed -n 's/^ExecStart=//p' "$unit") >/dev/null 2>/run/log &
    echo $! >/run/sterna.pid
    for _ in $(seq 600); do
        if curl -fs -o /dev/null http://localhost:9464/healthz; then exit 0; fi
        if ! kill -0 "$(cat /run/sterna.pid)"; then break; fi
        sleep 0.1
    done
    cat /run/log >&2
    exit 1
    ;;
reload)
    $(sed -n 's/^ExecReload=//p' "$unit" | sed "s/\$MAINPID/$(cat /run/sterna.pid)/")
    for _ in $(seq 600); do
        if grep -qi 'reload' /run/log; then exit 0; fi
        sleep 0.1
    done
    cat /run/log >&2
    exit 1
    ;;
*)
    exec /usr/bin/systemctl "$@"
    ;;
esac
"#;

/// The commands of the steps, one text each.
fn steps(page: &str) -> Vec<String> {
    let section = page.split_once(SECTION).map_or("", |(_, after)| after);
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    let command = |block: &str| block.split("```").next().unwrap_or_default().to_owned();
    blocks.map(command).collect()
}

/// Runs the steps with a package. Returns their number, and what they printed.
pub(super) fn run(
    workspace: &Workspace,
    package: &Path,
    folder: &Path,
) -> Result<(usize, String), Failure> {
    let steps = steps(&read(&workspace.root.join("docs/operations.md"))?);
    let folder = super::emptied(&folder.join("steps"))?;
    fs::copy(
        package,
        folder.join(package.file_name().unwrap_or_default()),
    )?;
    let mut script = String::from("trap 'echo \"step $step failed\" >&2' ERR\n");
    for (at, step) in steps.iter().enumerate() {
        script.extend(["step=", &(at + 1).to_string(), "\n", step]);
    }
    write(&folder.join("steps"), &script)?;
    write(&folder.join("systemctl"), SYSTEMCTL)?;
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-c", WORLD, "world"])
        .arg(&folder);
    Ok((steps.len(), tool("util-linux", &mut command)?))
}
