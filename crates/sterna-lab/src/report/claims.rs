//! The table "paper / ours / verdict / why".

use std::fmt::Write as _;

use serde::Serialize;

use crate::campaign::{Campaign, Check, Claim};

use super::checks::{self, Found, Row};
use super::values::Table;

/// Exceptions that are named one by one; of more only their number is said.
const MAX_EXCEPTIONS: usize = 4;

/// Agreement of the runs with a claim, judged by 95 % intervals.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// The claim holds: the whole interval is where it says, in each of its cells.
    Agree,
    /// It does not: in one of its cells the whole interval is elsewhere.
    Disagree,
    /// The interval is on both sides, or there is none.
    Undecided,
    /// No test: an input, a row that cannot fail, or one without a value. The reason says which.
    NotTested,
}

impl Agreement {
    /// In a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agree => "agree",
            Self::Disagree => "disagree",
            Self::Undecided => "undecided",
            Self::NotTested => "–",
        }
    }

    /// That of a claim whose parts have these: each of them has to hold.
    pub(super) fn of_all(parts: impl IntoIterator<Item = Self>) -> Self {
        parts
            .into_iter()
            .filter(|part| *part != Self::NotTested)
            .reduce(|whole, part| match (whole, part) {
                (Self::Disagree, _) | (_, Self::Disagree) => Self::Disagree,
                (Self::Agree, Self::Agree) => Self::Agree,
                _ => Self::Undecided,
            })
            .unwrap_or(Self::NotTested)
    }
}

/// A claim with its answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The claim's number.
    pub id: String,
    /// The claim.
    pub text: String,
    /// Where in the paper.
    pub place: String,
    /// The paper's value.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Whether they agree.
    pub agreement: Agreement,
    /// The differences, and further remarks.
    pub why: String,
    /// The values that the verdict comes from, and those that are only shown.
    pub rows: Vec<Row>,
}

/// Answers all claims of a campaign.
pub(super) fn answer_all(campaign: &Campaign, table: &Table<'_>) -> Vec<Answer> {
    campaign
        .claims
        .iter()
        .map(|claim| answer(claim, table))
        .collect()
}

fn answer(claim: &Claim, table: &Table<'_>) -> Answer {
    let of = |ours: String, agreement: Agreement, why: String, rows: Vec<Row>| Answer {
        id: claim.id.clone(),
        text: claim.text.clone(),
        place: claim.place.clone(),
        paper: claim.paper.clone(),
        ours,
        agreement,
        why,
        rows,
    };
    if let Check::Stated { reason } = &claim.check {
        return of("–".into(), Agreement::NotTested, reason.clone(), Vec::new());
    }
    let mut found = Found::default();
    for check in claim.checks() {
        found.add(checks::look(check, table));
    }
    let missed = !found.missing.is_empty();
    let verdict = match &claim.untested {
        Some(_) => Agreement::NotTested,
        // A value that was not measured could have been otherwise.
        None => Agreement::of_all(
            found
                .rows
                .iter()
                .map(|row| row.agreement)
                .chain((missed && !found.rows.is_empty()).then_some(Agreement::Undecided)),
        ),
    };
    let mut why: Vec<String> = Vec::new();
    if missed {
        why.push(format!("no sound sample of {}", few(&found.missing)));
    }
    match &claim.untested {
        Some(reason) => why.push(format!("not counted: {reason}")),
        None if found.exceptions.is_empty() => {}
        None => why.push(few(&found.exceptions)),
    }
    if !claim.note.is_empty() {
        why.push(claim.note.clone());
    }
    for check in &claim.shown {
        let mut other = checks::look(check, table);
        for text in other.ours.drain(..) {
            found.ours.push(format!("[{text}]"));
        }
        for row in &mut other.rows {
            row.agreement = Agreement::NotTested;
        }
        found.rows.append(&mut other.rows);
    }
    for (number, row) in found.rows.iter_mut().enumerate() {
        row.claim.clone_from(&claim.id);
        row.number = number;
    }
    let ours = if found.ours.is_empty() {
        "–".into()
    } else {
        found.ours.join("; ")
    };
    of(ours, verdict, why.join("; "), found.rows)
}

fn few(all: &[String]) -> String {
    let mut text = all
        .iter()
        .take(MAX_EXCEPTIONS)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    if all.len() > MAX_EXCEPTIONS {
        // Writing to a String does not fail.
        let _ = write!(text, "; and {} more", all.len() - MAX_EXCEPTIONS);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Agreement::{Agree, Disagree, NotTested, Undecided};
    use super::*;

    #[test]
    fn a_claim_holds_if_each_part_does() {
        for (parts, whole) in [
            (&[Agree, Agree][..], Agree),
            (&[Agree, Undecided], Undecided),
            (&[Undecided, Disagree, Agree], Disagree),
            (&[Agree, NotTested], Agree),
            (&[NotTested], NotTested),
            (&[], NotTested),
        ] {
            assert_eq!(Agreement::of_all(parts.iter().copied()), whole, "{parts:?}");
        }
    }
}
