//! The flags of every command that sets how long logs are kept.

use clap::Args;

/// A number of days, or for ever.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct RetentionTime {
    /// Days after the end of a task; -1 for ever
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i16).range(-1..))]
    days: Option<i16>,
    /// Keep logs for ever
    #[arg(long)]
    forever: bool,
}

impl RetentionTime {
    /// Days after the end of a task, as in the API: -1 = for ever.
    pub(crate) fn days(&self) -> i16 {
        self.days.filter(|_| !self.forever).unwrap_or(-1)
    }

    /// The end of a sentence about logs that are kept for this time.
    pub(crate) fn describe(&self) -> String {
        match self.days() {
            1 => "are kept for 1 day after the end of a task".to_owned(),
            days @ 0.. => format!("are kept for {days} days after the end of a task"),
            _ => "are kept for ever".to_owned(),
        }
    }
}
