//! Checks before anything is measured: the links, the brokers and their settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::broker::Broker;
use super::campaign_run::Progress;
use super::run::Setting;
use super::site::{Site, SiteKind};
use super::store::Manifest;
use crate::calibrate;
use crate::campaign::{Plan, Run};
use crate::link::LinkSettings;
use crate::netns::Side;
use crate::profile::Profile;

/// Time to measure each row of the calibration before a campaign.
const CALIBRATION: Duration = Duration::from_millis(800);

/// The links that were calibrated, each with its lines. Campaigns of one command share them.
#[derive(Debug, Default)]
pub(super) struct Calibrations(BTreeMap<String, Vec<String>>);

impl Calibrations {
    /// Calibrates the links of a plan, and notes it in the manifest; or notes why not.
    pub(super) fn note(
        &mut self,
        plan: &Plan,
        setting: &Setting<'_>,
        calibrate: bool,
        manifest: &mut Manifest,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), String> {
        let warning = match setting.site {
            SiteKind::Relay => {
                "a relay emulates the links: of TCP only bytes are delayed, nothing is lost or \
                 acknowledged on the link, so this compares no transports"
            }
            SiteKind::Ns3 => {
                "ns-3 emulates the links: transports do not meet the same losses packet for packet"
            }
            SiteKind::Namespaces if !calibrate => "the links were not calibrated before",
            SiteKind::Namespaces => {
                progress(Progress::Note("calibrating the links"));
                let links: BTreeSet<&str> = plan.runs.iter().map(|run| run.link.as_str()).collect();
                for link in links {
                    if !self.0.contains_key(link) {
                        let measured = calibrate_link(link, setting, manifest.seed, progress)?;
                        self.0.insert(link.to_owned(), measured);
                    }
                    manifest
                        .calibration
                        .extend(self.0.get(link).into_iter().flatten().cloned());
                }
                return Ok(());
            }
        };
        if setting.site == SiteKind::Relay {
            progress(Progress::Note(&format!("warning: {warning}")));
        }
        manifest.warnings.push(warning.into());
        Ok(())
    }
}

/// Measures a link by itself: a line for each value.
fn calibrate_link(
    link: &str,
    setting: &Setting<'_>,
    seed: u64,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let Ok(settings) = Profile::link(link) else {
        return Ok(lines);
    };
    for measurement in calibrate::measurements_of(link, &settings, CALIBRATION) {
        if setting.stop.load(Ordering::Relaxed) {
            break;
        }
        let rows = measurement
            .run(seed)
            .map_err(|error| format!("calibration of {link}: {error}"))?;
        for row in &rows {
            let truth = if row.is_true { "true" } else { "NOT TRUE" };
            let text = format!(
                "{} {:?}: set {:.6}, got {:.6}, {truth}, {}",
                row.link, row.quantity, row.set, row.got, row.note
            );
            if !row.is_true {
                progress(Progress::Note(&format!("warning: {text}")));
            }
            lines.push(text);
        }
    }
    Ok(lines)
}

/// Starts a broker for each transport. This makes the certificate, and shows a wrong setting before
/// it fails every run. Also asks the kernel for the actual congestion control of TCP.
pub(super) fn check_transports(
    plan: &Plan,
    setting: &Setting<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut in_force = BTreeMap::new();
    let mut seen: Vec<&Run> = Vec::new();
    for run in &plan.runs {
        if seen
            .iter()
            .any(|other| other.transport.name == run.transport.name)
        {
            continue;
        }
        seen.push(run);
        let name = &run.transport.name;
        let failed = |error: String| format!("transport `{name}`: {error}");
        let wanted = run.transport.congestion.as_deref();
        // An ideal link, so that nothing has to be waited for.
        let ideal = LinkSettings::default();
        let mut site = Site::start(setting, "ideal", &ideal, 1, &run.transport)
            .map_err(|error| failed(error.to_string()))?;
        let broker = Broker::start(setting, &site, run).map_err(failed)?;
        let target = site
            .reach(broker.port())
            .map_err(|error| failed(error.to_string()))?;
        let found = match site.cell() {
            Some(cell) if run.transport.is_tcp() => cell
                .namespace(Side::Client)
                .congestion_control_towards(target)
                .map_err(|error| failed(error.to_string()))?,
            Some(_) => wanted.unwrap_or("the library's default").to_owned(),
            None => "the system's, on the loopback device".to_owned(),
        };
        if let (Some(wanted), Some(_)) = (wanted, site.cell())
            && wanted != found
        {
            return Err(failed(format!(
                "congestion control is {found} instead of {wanted}"
            )));
        }
        in_force.insert(name.clone(), format!("congestion control {found}"));
        drop(broker);
        drop(site);
    }
    Ok(in_force)
}
