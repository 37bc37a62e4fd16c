//! Many nodes of Sterna on NATS JetStream.
//!
//! A node is one process. Its shards serve local clients, and hand what other nodes want to an [`Engine`],
//! whose thread is the client of NATS. `docs/cluster.md` says what a cluster keeps and what not,
//! `docs/cluster-design.md` how, and `docs/cluster-wire.md` what lies in NATS.
//!
//! - [`subject`]: topics as subjects.
//! - [`wire`]: messages between nodes.
//! - [`Table`](table::Table): who else is there, and wants what; without input or output.
//! - [`Arrivals`](arrivals::Arrivals): which batch of another node is the next; the same.
//! - [`Clocks`](clocks::Clocks): whose clock is wrong; the same.
//! - [`Commits`](commits::Commits): which acknowledgements may leave; the same.
//! - [`Echoes`](echoes::Echoes): which retained message of a topic is the last; the same.
//! - [`Owners`](owners::Owners): which node has a session; the same.
//! - [`requests`]: which requests were done, by the keys that clients chose; the same.
//! - [`Tail`](tail::Tail): records that were not written behind their messages; the same.
//! - [`Port`], [`Shards`]: between shards and the thread.
//! - [`Transfer`]: all of a cluster, read and written by a program that is no node.
//! - `engine/`: the thread.

pub mod arrivals;
pub mod clocks;
pub mod commits;
mod conditions;
pub mod echoes;
mod engine;
pub mod owners;
mod port;
mod report;
pub mod requests;
mod rights;
mod settings;
mod status;
pub mod subject;
mod subjects;
pub mod table;
pub mod tail;
pub mod wire;

pub use engine::{Content, Ended, Engine, Left, NodeTime, Plan, Running, Transfer};
pub use owners::Fence;
pub use port::{Answer, Answerer, Asker, BanRecord, NodeAnswer, Port, Shards, ToShard, Told};
pub use report::{FollowerView, NodeView, NodeWord, RegionView, Report, StreamView};
pub use settings::{Region, Remote, Settings, is_name};
pub use status::{Figure, Roster, Status};
