//! The on-disk log spool between a task and the master.
//!
//! Every line that a task writes is a [`Record`] with a sequence number, counted from 1 within one container. The
//! supervisor appends records with a [`Writer`]. The shipper, which is the supervisor and after its end the agent,
//! reads them with a [`Reader`], posts each [`Batch`] with [`batch_body`] and records with [`acknowledge`] what the
//! master accepted. The master drops sequence numbers that it has, so a batch may be posted any number of times.
//!
//! The crate uses files only: no network, no clock, no threads. Read [`Record`], [`Writer`] and [`Reader`] first.
//!
//! # On disk
//!
//! A spool is a directory of segments, `<sequence number of the first record, 20 digits>.seg`, and a file `ack` with
//! the highest acknowledged sequence number. A segment is a sequence of frames:
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 4 | length of the payload, little endian |
//! | 4 | CRC-32 (IEEE) of the following 8 bytes and the payload |
//! | 8 | sequence number |
//! | length | the record as JSON |
//!
//! An incomplete or damaged frame at the end of the last segment is where a writer died: its record was never stored.
//! Damage in an earlier segment loses the rest of that segment; the gap is visible in the sequence numbers.

mod ack;
mod batch;
mod error;
mod frame;
mod plain;
mod reader;
mod record;
mod segment;
mod writer;

pub use ack::{acknowledge, acknowledged};
pub use batch::{Batch, BatchIds, LOGS_PATH, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, batch_body};
pub use det_ids::{LogLevel, LogStream};
pub use error::SpoolError;
pub use plain::{open_plain, read_plain};
pub use reader::Reader;
pub use record::{Outage, Record, rfc3339};
pub use writer::{DEFAULT_CAPACITY_BYTES, Writer};
