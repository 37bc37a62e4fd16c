pub mod subject;
pub mod wire;
