//! `sterna admin sessions`: by name and user.

use std::fmt::Write as _;

use clap::{Args as ClapArgs, Subcommand};
use sterna_client::http::Method;

use super::connection::{Admin, segment};
use super::shown::Shown;
use super::{Failure, SESSIONS, SUBSCRIPTIONS, hinted, list, one, path, table};

#[derive(Debug, Subcommand)]
pub(super) enum Sessions {
    /// List them
    List {
        /// Only those of this name, whichever user has them
        #[arg(long, value_name = "SESSION")]
        name: Option<String>,
        /// Only those of this user
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// Only those of clients without a user name
        #[arg(long, conflicts_with = "user")]
        nobody: bool,
    },
    /// Show one
    Show(Session),
    /// List its subscriptions
    Subscriptions(Session),
    /// End it with its subscriptions and queue, and disconnect its client
    End(Session),
    /// End all sessions of a user, or of clients without one, with their wills, and disconnect their clients
    Remove {
        /// The user, who may be missing from the files
        #[arg(long, value_name = "NAME", required_unless_present = "nobody")]
        user: Option<String>,
        /// Those of clients without a user name
        #[arg(long, conflicts_with = "user")]
        nobody: bool,
    },
}

#[derive(ClapArgs, Debug)]
pub(super) struct Session {
    /// Its name, as `list` shows it: of MQTT the client identifier, of HTTP `$http/NAME`, of AMQP
    /// `$amqp/CONTAINER/LINK`, with `/~` where it ends with its connection
    #[arg(value_name = "SESSION")]
    name: String,
    /// The user whose session it is. Without it, there may be one of the name alone
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The session of clients without a user name
    #[arg(long, conflicts_with = "user")]
    nobody: bool,
}

impl Session {
    /// The resource of the session; `behind` follows its name.
    ///
    /// # Errors
    /// Several users have a session of the name, and none is named.
    async fn path(&self, admin: &Admin, behind: &str) -> Result<String, Failure> {
        let user = match &self.user {
            None if !self.nobody => self.find_user(admin).await?,
            user => user.clone(),
        };
        let resource = format!("/sessions/{}{behind}", segment(&self.name));
        Ok(path(&resource, &[("user", &user)]))
    }

    /// The user of the only session of the name; `None` also where there is none.
    async fn find_user(&self, admin: &Admin) -> Result<Option<String>, Failure> {
        let named = format!("/sessions?name={}", segment(&self.name));
        let found = admin.list(&named, 10).await?.items;
        let users = found.iter().map(|session| session["user"].as_str());
        let users: Vec<Option<&str>> = users.collect();
        if let [] | [_] = users[..] {
            return Ok(users.first().copied().flatten().map(str::to_owned));
        }
        let name = table::harmless(&self.name);
        let mut text = format!("several users have a session {name}: name one by");
        for (at, user) in users.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = match user {
                Some(user) => write!(text, "{comma} --user {}", table::harmless(user)),
                None => write!(text, "{comma} --nobody"),
            };
        }
        Err(Failure::local(text))
    }
}

pub(super) async fn act(admin: &Admin, action: &Sessions, most: usize) -> Result<Shown, Failure> {
    let hint = "`sterna admin sessions list` shows the names";
    let shown = about(admin, action, most).await;
    shown.map_err(|failure| hinted(failure, hint))
}

async fn about(admin: &Admin, action: &Sessions, most: usize) -> Result<Shown, Failure> {
    match action {
        Sessions::List { name, user, nobody } => {
            let nobody = nobody.then(|| "yes".to_owned());
            let path = path(
                "/sessions",
                &[("name", name), ("user", user), ("nobody", &nobody)],
            );
            list(admin, &SESSIONS, &path, most).await
        }
        Sessions::Show(session) => one(admin, &session.path(admin, "").await?).await,
        Sessions::Subscriptions(session) => {
            let path = session.path(admin, "/subscriptions").await?;
            list(admin, &SUBSCRIPTIONS, &path, most).await
        }
        Sessions::End(session) => {
            let path = session.path(admin, "").await?;
            let answer = admin.call(Method::Delete, &path, None).await?;
            let words = format_args!("the session {} has ended", session.name);
            Ok(Shown::done(answer, words))
        }
        Sessions::Remove { user, .. } => {
            let path = match user {
                Some(user) => format!("/sessions?user={}", segment(user)),
                None => "/sessions?nobody=yes".to_owned(),
            };
            let answer = admin.call(Method::Delete, &path, None).await?;
            let ended = answer["sessions"].as_u64().unwrap_or(0);
            let user = (user.as_deref()).map_or_else(|| "nobody".into(), table::harmless);
            let silent = answer["unanswered"].as_array().into_iter().flatten();
            let silent = silent.map(|node| {
                let node = table::cell(Some(node));
                format!("no answer from node {node}: those there have not\n")
            });
            let silent: String = silent.collect();
            let text = format!("{ended} sessions of {user} have ended\n{silent}");
            Ok(Shown::Told(answer, text))
        }
    }
}
