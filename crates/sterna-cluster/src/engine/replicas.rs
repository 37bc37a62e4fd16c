//! How many copies NATS keeps of each stream: raised to `cluster.replicas`, and lowered by a command alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, Info};

use super::Core;
use crate::conditions::Remark;

/// Time after which copies that NATS did not make are asked for again.
const AGAIN: Duration = Duration::from_secs(10);

/// Streams with another number of copies than is set.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Each with its copies, and why NATS makes no more of them.
    other: RefCell<BTreeMap<String, (usize, Option<String>)>>,
}

impl Core {
    /// Raises the copies of a stream to those that are set. One that cannot be raised stays as it is, and is named.
    /// Returns how the stream is.
    pub(super) async fn raise_replicas(&self, info: Info) -> Info {
        let (wanted, found) = (self.settings.replicas, info.config.num_replicas);
        let name = info.config.name.clone();
        if found == wanted {
            self.replicas.other.borrow_mut().remove(&name);
            self.remark_replicas();
            return info;
        }
        let raised = if found < wanted {
            self.replicate(info.config.clone(), wanted).await
        } else {
            // Somebody has chosen more, and may rely on them.
            Ok(info.clone())
        };
        let (info, why) = match raised {
            Ok(raised) => (raised, None),
            Err(why) => (info, Some(why)),
        };
        let now = info.config.num_replicas;
        let mut other = self.replicas.other.borrow_mut();
        if now == wanted {
            other.remove(&name);
        } else {
            other.insert(name, (now, why));
        }
        drop(other);
        self.remark_replicas();
        info
    }

    /// Has NATS keep another number of copies of a stream.
    async fn replicate(&self, config: Config, replicas: usize) -> Result<Info, String> {
        let (name, before) = (config.name.clone(), config.num_replicas);
        let config = Config {
            num_replicas: replicas,
            ..config
        };
        let updated = self.jetstream.update_stream(config).await;
        let updated = updated.map_err(|error| error.to_string())?;
        tracing::info!(
            stream = name,
            before,
            replicas,
            "NATS keeps another number of copies"
        );
        Ok(updated)
    }

    /// Has NATS keep a number of copies of all streams of this cluster, more or fewer.
    ///
    /// # Errors
    /// A sentence that names the stream, and NATS' reason. Those before it are changed.
    pub(super) async fn set_replicas(&self, replicas: usize) -> Result<(), String> {
        for name in self.stream_names() {
            let failed = |error: &dyn std::fmt::Display| format!("stream {name}: {error}");
            let found = self.jetstream.get_stream(&name).await;
            let found = found.map_err(|error| failed(&error))?.cached_info().clone();
            let mut now = found.config.num_replicas;
            if now != replicas {
                let changed = self.replicate(found.config, replicas).await;
                now = changed.map_err(|why| failed(&why))?.config.num_replicas;
            }
            let mut other = self.replicas.other.borrow_mut();
            other.remove(&name);
            if now != self.settings.replicas {
                other.insert(name, (now, None));
            }
        }
        self.remark_replicas();
        Ok(())
    }

    /// Asks again for copies that NATS did not make, such as before its servers were there.
    pub(super) async fn look_after_replicas(self: Rc<Self>) {
        loop {
            tokio::time::sleep(AGAIN).await;
            let failed = |(_, why): &(usize, Option<String>)| why.is_some();
            let streams: Vec<String> = {
                let other = self.replicas.other.borrow();
                let failed = other.iter().filter(|(_, one)| failed(one));
                failed.map(|(name, _)| name.clone()).collect()
            };
            for name in streams {
                if let Ok(found) = self.jetstream.get_stream(&name).await {
                    self.raise_replicas(found.cached_info().clone()).await;
                }
            }
        }
    }

    fn remark_replicas(&self) {
        let text = words(self.settings.replicas, &self.replicas.other.borrow());
        let shown = text.clone().unwrap_or_default();
        if self.status.conditions.remark(Remark::Replicas, text) && !shown.is_empty() {
            tracing::warn!("{shown}");
        }
    }
}

/// A sentence about streams with another number of copies; `None` where there are none.
fn words(wanted: usize, other: &BTreeMap<String, (usize, Option<String>)>) -> Option<String> {
    let each = other.iter().map(|(name, (copies, why))| match why {
        Some(why) => format!("{name} has {copies} (NATS makes no more: {why})"),
        None => format!("{name} has {copies}"),
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| {
        format!(
            "copies in NATS are not cluster.replicas = {wanted}: {}",
            each.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_with_other_copies_are_named() {
        let mut other = BTreeMap::new();
        assert_eq!(words(3, &other), None);
        other.insert("B".to_owned(), (5, None));
        other.insert("A".to_owned(), (1, Some("no suitable peers".to_owned())));
        assert_eq!(
            words(3, &other).as_deref(),
            Some(
                "copies in NATS are not cluster.replicas = 3: A has 1 (NATS makes no more: no suitable peers), B has 5"
            )
        );
    }
}
