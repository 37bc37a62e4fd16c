//! Proof of a password by challenge: SCRAM-SHA-256, by MQTT's AUTH and by SASL.

use sterna_auth::{ClientFirst, MECHANISM, Nonce, ServerStart};

use super::{Refusal, Users};

/// An exchange under way (MQTT 5.0, section 4.12; RFC 5802).
#[derive(Debug)]
pub(crate) struct Exchange {
    user: String,
    /// The user's record as text, for which the challenge was made; `None` for no such user.
    record: Option<String>,
    step: ServerStart,
}

impl Exchange {
    /// Starts with the client's first message; the second value is the challenge for the client.
    ///
    /// # Errors
    /// When the method is not served, because there are no users. When the message is malformed, or the
    /// client wants to act as another than it is.
    pub(crate) fn start(
        users: &Users,
        method: &str,
        first: &[u8],
    ) -> Result<(Self, String), Refusal> {
        if method != MECHANISM || !users.are_configured() {
            return Err(Refusal::Method);
        }
        let first = ClientFirst::parse(first).map_err(|_| Refusal::Exchange)?;
        if first.acts_as().is_some_and(|other| other != first.user()) {
            return Err(Refusal::Exchange);
        }
        let mut random = [0; 18];
        getrandom::fill(&mut random).map_err(|_| Refusal::Unavailable)?;
        let user = first.user().to_owned();
        let record = users.record_or_decoy(&user);
        // It is written for a decoy, too, so that the time for it tells nothing.
        let text = record.to_string();
        let text = Some(text).filter(|_| !record.is_decoy());
        let (step, challenge) = ServerStart::new(first, record, &Nonce::from_random(random));
        let exchange = Self {
            user,
            record: text,
            step,
        };
        Ok((exchange, challenge))
    }

    /// The user that the client says it is.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Checks the client's proof; the value is the last message for the client.
    ///
    /// # Errors
    /// [`Refusal::Exchange`], also when the user was removed or has another password since the
    /// challenge.
    pub(crate) fn finish(self, users: &Users, proof: &[u8]) -> Result<String, Refusal> {
        let is_same = self.record.is_some() && users.record_text(&self.user) == self.record;
        let last = self.step.verify(proof).map_err(|_| Refusal::Exchange)?;
        is_same.then_some(last).ok_or(Refusal::Exchange)
    }
}

#[cfg(test)]
mod tests {
    use sterna_auth::ScramClient;

    use super::super::users::tests::users;
    use super::*;

    fn attempt(before: &Users, after: &Users, user: &str) -> Result<String, Refusal> {
        let nonce = Nonce::from_random([3; 18]);
        let (client, first) = ScramClient::start(user, "secret", &nonce).unwrap();
        let (exchange, challenge) = Exchange::start(before, MECHANISM, first.as_bytes())?;
        assert_eq!(exchange.user(), user);
        let (client, proof) = client.challenge(challenge.as_bytes()).unwrap();
        let last = exchange.finish(after, proof.as_bytes())?;
        client.verify(last.as_bytes()).unwrap();
        Ok(last)
    }

    #[test]
    fn an_exchange_runs_to_its_end() {
        let (_directory, users) = users("secret");
        attempt(&users, &users, "ann").unwrap();
    }

    #[test]
    fn an_unknown_user_is_challenged_like_any_other_and_fails_at_the_end() {
        let (_directory, users) = users("secret");
        assert_eq!(attempt(&users, &users, "eve"), Err(Refusal::Exchange));
        let other = Exchange::start(&users, "PLAIN", b"");
        assert_eq!(other.unwrap_err(), Refusal::Method);
    }

    #[test]
    fn a_user_that_is_removed_or_changed_in_between_fails() {
        let (_directory, before) = users("secret");
        let (_directory, after) = users("another");
        assert_eq!(attempt(&before, &after, "ann"), Err(Refusal::Exchange));
        let nobody = Users::load(None).unwrap();
        assert_eq!(attempt(&before, &nobody, "ann"), Err(Refusal::Exchange));
    }
}
