//! Lists that may be long: printed page by page, as the pages come.

use std::cmp::min;

use clap::Args;
use serde::Serialize;

use crate::client::{ClientError, Page};

use super::failure::Failure;
use super::output::{Output, Table};

/// Names asked for at a time.
const PAGE: u32 = 1000;

/// Which part of a list.
#[derive(Debug, Args)]
pub(super) struct Part {
    /// Begin behind this name, which need not exist.
    #[arg(long, value_name = "NAME")]
    after: Option<String>,
    /// List at most so many. When there are more, standard error says where to go on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// Asks for page after page and prints each at once. `name` is what a page is asked for behind.
pub(super) async fn list<T: Serialize>(
    output: &Output,
    part: Part,
    ask: impl AsyncFn(Option<String>, u32) -> Result<Page<T>, ClientError>,
    (table, name): (impl Fn(&[T]) -> Table, impl Fn(&T) -> String),
) -> Result<(), Failure> {
    let Part { mut after, limit } = part;
    let mut left = limit.unwrap_or(u32::MAX);
    let mut pages = output.pages();
    loop {
        let wanted = min(left, PAGE);
        let page = ask(after.clone(), wanted).await?;
        let count = u32::try_from(page.items.len()).unwrap_or(u32::MAX);
        pages.add(&page.items, table(&page.items));
        after = page.items.last().map(&name).or(after);
        left = left.saturating_sub(count);
        // A page without an item and with more behind it would be asked for again for ever.
        let more = page.more && count > 0;
        if more && left > 0 {
            continue;
        }
        pages.end();
        if let Some(last) = after.filter(|_| more) {
            output.note(format_args!("there are more; go on with --after {last}"));
        }
        return Ok(());
    }
}
