//! Ordering listings that are held whole, and cutting pages out of them: `docs/contract/http-api.md`, "Pages".

use std::cmp::Ordering;

use det_api_types::page::Pagination;

/// As in a dictionary: letter case decides last.
pub(crate) fn by_name(a: &str, b: &str) -> Ordering {
    let folded = a.to_lowercase().cmp(&b.to_lowercase());
    folded.then_with(|| a.cmp(b))
}

/// One page of `items`: `limit` 0 or below = all; a negative offset counts from the end; an offset beyond the end gives
/// an empty page.
pub(crate) fn slice<T>(items: Vec<T>, offset: i64, limit: i64) -> (Vec<T>, Pagination) {
    let total = items.len();
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let start = if offset < 0 {
        total.saturating_sub(usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX))
    } else {
        usize::try_from(offset).unwrap_or(usize::MAX).min(total)
    };
    let end = match usize::try_from(limit) {
        Ok(limit @ 1..) => start.saturating_add(limit).min(total),
        _ => total,
    };
    let page = items.into_iter().skip(start).take(end - start).collect();
    let pagination = Pagination {
        offset,
        limit,
        start_index: signed(start),
        end_index: signed(end),
        total: signed(total),
    };
    (page, pagination)
}

/// Bytes of texts that the items of a page have together at most; one that has more comes alone.
pub(crate) const PAGE_BYTES: i64 = 8 << 20;

/// A page that ends where its items have [`PAGE_BYTES`] together: clients go on at its end.
pub(crate) fn within<T>(
    mut items: Vec<T>,
    mut pagination: Pagination,
    bytes: impl Fn(&T) -> i64,
) -> (Vec<T>, Pagination) {
    let mut left = PAGE_BYTES;
    let fitting = items.iter().take_while(|item| {
        left = left.saturating_sub(bytes(item));
        left >= 0
    });
    let count = fitting.count().max(1);
    let dropped = items.len().saturating_sub(count);
    items.truncate(count);
    pagination.end_index -= i64::try_from(dropped).unwrap_or(i64::MAX);
    (items, pagination)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(offset: i64, limit: i64) -> (Vec<u8>, i64, i64) {
        let (items, pagination) = slice(vec![1, 2, 3, 4, 5], offset, limit);
        assert_eq!(pagination.total, 5);
        (items, pagination.start_index, pagination.end_index)
    }

    #[test]
    fn names_are_in_the_order_of_a_dictionary() {
        let mut names = ["b", "B", "a", "C"];
        names.sort_by(|a, b| by_name(a, b));
        assert_eq!(names, ["a", "B", "b", "C"]);
    }

    #[test]
    fn no_limit_gives_everything() {
        assert_eq!(page(0, 0), (vec![1, 2, 3, 4, 5], 0, 5));
        assert_eq!(page(2, -1), (vec![3, 4, 5], 2, 5));
    }

    #[test]
    fn a_limit_cuts() {
        assert_eq!(page(1, 2), (vec![2, 3], 1, 3));
        assert_eq!(page(4, i64::MAX), (vec![5], 4, 5));
    }

    #[test]
    fn a_negative_offset_counts_from_the_end() {
        assert_eq!(page(-2, 0), (vec![4, 5], 3, 5));
        assert_eq!(page(i64::MIN, 1), (vec![1], 0, 1));
    }

    #[test]
    fn large_items_end_a_page_early_and_it_always_advances() {
        let large = |bytes: [i64; 3]| {
            let (items, pagination) = slice(bytes.to_vec(), 0, 0);
            let (items, pagination) = within(items, pagination, |bytes| *bytes);
            assert_eq!((pagination.start_index, pagination.total), (0, 3));
            (items.len(), pagination.end_index)
        };
        assert_eq!(large([PAGE_BYTES / 2, PAGE_BYTES / 2, 1]), (2, 2));
        assert_eq!(large([PAGE_BYTES + 1, 1, 1]), (1, 1));
        assert_eq!(large([1, 1, PAGE_BYTES - 2]), (3, 3));
        let (none, pagination) = within(Vec::<i64>::new(), Pagination::default(), |_| 1);
        assert_eq!((none.len(), pagination.end_index), (0, 0));
    }

    #[test]
    fn beyond_the_end_there_is_an_empty_page_at_the_end() {
        assert_eq!(page(9, 3), (vec![], 5, 5));
    }
}
