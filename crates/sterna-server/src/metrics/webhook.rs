//! Figures of the webhook: questions with their outcomes and times, and remembered answers.

use super::histogram::Observed;
use super::meters::Distribution;
use super::page::Page;
use crate::identity::{WEBHOOK_BOUND_US, Webhook, WebhookOutcome, WebhookSubject};

/// Writes the figures; all are 0 where nothing is asked.
pub(super) fn write(webhook: &Webhook, page: &mut Page<'_>) {
    let each = WebhookSubject::ALL.into_iter();
    let outcomes = each.clone().flat_map(|subject| {
        WebhookOutcome::ALL.into_iter().map(move |outcome| {
            let number = webhook.meters().outcomes(subject, outcome);
            ([subject.name(), outcome.name()], number)
        })
    });
    page.counters(
        "sterna_webhook_questions",
        "Questions to the webhook, by what came of them",
        ["subject", "outcome"],
        outcomes,
    );
    page.histograms(
        "sterna_webhook_answer_seconds",
        "Times of the webhook's answers, bad ones and those that did not come included",
        "subject",
        each.clone().map(|subject| {
            let (buckets, sum_us) = webhook.meters().seconds(subject);
            Distribution {
                label: subject.name(),
                observed: Observed::new(buckets, sum_us),
                unit: WEBHOOK_BOUND_US as f64 * 1e-6,
                sum_unit: 1e-6,
            }
        }),
    );
    let lookups = each.clone().flat_map(|subject| {
        let (hits, misses) = webhook.lookups(subject);
        [("hit", hits), ("miss", misses)].map(|(result, number)| ([subject.name(), result], number))
    });
    page.counters(
        "sterna_webhook_lookups",
        "Lookups among the webhook's answers of late",
        ["subject", "result"],
        lookups,
    );
    page.gauges(
        "sterna_webhook_paused",
        "1 while the webhook is left alone after failures",
        ["subject"],
        (each.clone()).map(|subject| ([subject.name()], webhook.is_paused(subject).into())),
    );
    page.counters(
        "sterna_webhook_connections",
        "Connections that were made to the webhook; each serves many questions",
        ["subject"],
        each.map(|subject| ([subject.name()], webhook.connects(subject))),
    );
    page.gauge(
        "sterna_webhook_open_questions",
        "Questions to the webhook that wait or are under way",
        webhook.open_questions() as u64,
    );
}
