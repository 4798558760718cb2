//! The flags that choose which part of a list is fetched, and in which order.

use clap::{Args, ValueEnum};
use det_client::{Pages, Paging, Query};

use crate::output;

/// Which part of a list to fetch.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct PageArgs {
    /// Most items to a page; --pages 1 prints one page alone
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    limit: Option<i64>,
    /// How many items to skip before the first page
    #[arg(
        long,
        default_value_t = 0,
        value_name = "N",
        allow_negative_numbers = true
    )]
    offset: i64,
    /// `all` to fetch everything, `1` for a single page
    #[arg(long, value_enum, default_value_t)]
    pages: PagesArg,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum PagesArg {
    #[value(name = "1")]
    One,
    #[default]
    All,
}

impl PageArgs {
    /// Prints that a list has more than one page, where `--limit` was given and may have been meant for the whole list. `shown`
    /// = how many items the list has.
    pub(crate) fn note_pages(self, shown: usize) {
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok());
        if let (Some(limit @ 1..), PagesArg::All) = (limit, self.pages)
            && shown > limit
        {
            output::note(format_args!(
                "--limit is the size of a page, and all pages are shown: --pages 1 shows the first {limit} only"
            ));
        }
    }

    /// The part of a list to fetch; its pages have `limit` items unless the flag sets another number.
    pub(crate) fn paging(self, limit: i64) -> Paging {
        Paging {
            offset: self.offset,
            limit: Some(self.limit.unwrap_or(limit)),
            pages: match self.pages {
                PagesArg::One => Pages::One,
                PagesArg::All => Pages::All,
            },
        }
    }
}

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct OrderArgs {
    /// What to sort by
    #[arg(long, value_enum, default_value_t)]
    sort_by: SortBy,
    /// In which direction
    #[arg(long, value_enum, default_value_t)]
    order_by: OrderBy,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum SortBy {
    #[default]
    Id,
    Name,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum OrderBy {
    #[default]
    Asc,
    Desc,
}

impl OrderArgs {
    /// Adds the order to a query of the API.
    pub(crate) fn add_to(self, query: Query) -> Query {
        let sort = match self.sort_by {
            SortBy::Id => "SORT_BY_ID",
            SortBy::Name => "SORT_BY_NAME",
        };
        let order = match self.order_by {
            OrderBy::Asc => "ORDER_BY_ASC",
            OrderBy::Desc => "ORDER_BY_DESC",
        };
        query.with("sortBy", sort).with("orderBy", order)
    }
}
