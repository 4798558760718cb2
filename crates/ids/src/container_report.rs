//! The identity of what the supervisor of a container reports.

use std::fmt;
use std::str::FromStr;

use crate::{ContainerId, ReportId};

/// Which report of a container it is: as a [`ReportId`] `<container>-<number>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReportId {
    /// The container that was measured.
    pub container_id: ContainerId,
    /// Number of the report, counted from 1 within the container.
    pub number: i64,
}

impl ContainerReportId {
    /// Bytes of a container's id at most, where one is read.
    const LONGEST: usize = 200;
}

impl fmt::Display for ContainerReportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.container_id, self.number)
    }
}

impl From<&ContainerReportId> for ReportId {
    fn from(id: &ContainerReportId) -> Self {
        Self(id.to_string())
    }
}

/// Text that is no [`ContainerReportId`]; it has the text, cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAContainerReport(String);

impl fmt::Display for NotAContainerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "must be the id of the container, \"-\" and a number from 1, found \"{}\"",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for NotAContainerReport {}

impl FromStr for ContainerReportId {
    type Err = NotAContainerReport;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (container, number) = text.rsplit_once('-')?;
            let container = (1..=Self::LONGEST)
                .contains(&container.len())
                .then_some(container)?;
            let number = number.parse().ok().filter(|number| *number > 0)?;
            Some(Self {
                container_id: container.into(),
                number,
            })
        };
        read().ok_or_else(|| NotAContainerReport(text.chars().take(Self::LONGEST).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_known_by_its_container_and_its_number() {
        for text in ["c-1", "5f0c-x-12", "c--3"] {
            let id: ContainerReportId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(ReportId::from(&id).as_str(), text);
        }
        let longest = format!("{}-1", "c".repeat(200));
        assert!(longest.parse::<ContainerReportId>().is_ok());
        for text in [
            "",
            "7",
            "-7",
            "c-0",
            "c--1x",
            "c-99999999999999999999",
            &format!("c{longest}"),
        ] {
            assert!(text.parse::<ContainerReportId>().is_err(), "{text}");
        }
        let error = "c\n-0".parse::<ContainerReportId>().unwrap_err();
        assert!(error.to_string().ends_with("found \"c\\n-0\""), "{error}");
    }
}
