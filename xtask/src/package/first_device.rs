//! The steps of `docs/operations.md` from the package to the first device, then backup and restore, each
//! command as it is written there. They run on a copy of this system that is gone afterwards, without a
//! network.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::tool;
use crate::Failure;
use crate::workspace::{Workspace, read, write};

/// The sections of the page.
const STEPS: &str = "## From the package to the first device\n";
const BACKUP: &str = "## Backup, restore, upgrade\n";

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
install -m 755 "$1/systemctl" "$1/systemd-run" /mnt/root/usr/local/sbin
exec chroot /mnt/root env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    bash -e -c 'cd /tmp/steps && . ./steps'
"#;

/// Stand-in for systemd with the unit: a user of its own, the state directory, the credentials. Of its
/// sandbox there are only the missing privileges.
const SYSTEMCTL: &str = r#"#!/bin/bash
set -e
unit=/usr/lib/systemd/system/sterna.service
credentials=/run/credentials/sterna.service
stop() {
    if [ -e /run/sterna.pid ]; then
        pid=$(cat /run/sterna.pid)
        kill "$pid"
        while [ -e "/proc/$pid/exe" ]; do sleep 0.1; done
        rm /run/sterna.pid
    fi
    rm -rf "$credentials"
}
case "$1" in
stop)
    stop
    ;;
start | restart)
    stop
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

/// Stand-in for `systemd-run`: a command with the unit's user and directory. It has none of the
/// credentials.
const SYSTEMD_RUN: &str = r#"#!/bin/bash
set -e
while true; do
    case "$1" in
    --quiet | --pipe | --wait) ;;
    -p)
        shift
        case "$1" in
        DynamicUser=yes | User=sterna | StateDirectory=sterna | StateDirectoryMode=0700) ;;
        *)
            echo "systemd-run: $1: not known to this test" >&2
            exit 1
            ;;
        esac
        ;;
    *) break ;;
    esac
    shift
done
install -d -m 700 -o 61184 -g 61184 /var/lib/private/sterna
exec setpriv --reuid 61184 --regid 61184 --clear-groups --no-new-privs --bounding-set=-all \
    env -i PATH=/usr/bin:/bin STATE_DIRECTORY=/var/lib/sterna "$@"
"#;

/// The commands of a section, one text for each block.
fn commands(page: &str, section: &str) -> Vec<String> {
    let section = page.split_once(section).map_or("", |(_, after)| after);
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    let command = |block: &str| block.split("```").next().unwrap_or_default().to_owned();
    blocks.map(command).collect()
}

/// Runs the steps with a package, and a backup that is restored where there is no store. Returns the
/// number of the steps, and the printed text. In that text the state of the first device comes twice:
/// from the first broker, and from the restored one.
pub(super) fn run(
    workspace: &Workspace,
    package: &Path,
    folder: &Path,
) -> Result<(usize, String), Failure> {
    let page = read(&workspace.root.join("docs/operations.md"))?;
    let steps = commands(&page, STEPS);
    let backup = commands(&page, BACKUP);
    let (Some(read_state), [export, import]) = (steps.get(8), &backup[..]) else {
        return Err(Failure::new(
            "docs/operations.md: steps or commands of the backup are missing",
        ));
    };
    let folder = super::emptied(&folder.join("steps"))?;
    fs::copy(
        package,
        folder.join(package.file_name().unwrap_or_default()),
    )?;
    let mut script = String::from("trap 'echo \"step $step failed\" >&2' ERR\n");
    for (at, step) in steps.iter().enumerate() {
        script.extend(["step=", &(at + 1).to_string(), "\n", step]);
    }
    script.extend(["step=backup\nmkdir /backup\n", export]);
    script.extend(["step=restore\nrm -rf /var/lib/private/sterna\n", import]);
    script.push_str(read_state);
    write(&folder.join("steps"), &script)?;
    write(&folder.join("systemctl"), SYSTEMCTL)?;
    write(&folder.join("systemd-run"), SYSTEMD_RUN)?;
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
