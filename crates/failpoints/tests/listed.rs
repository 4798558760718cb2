//! The list of points is the same as the points in the sources.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use det_failpoints::POINTS;

const CALL: &str = "failpoint!(\"";

fn collect(directory: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split(CALL).skip(1) {
                let name = rest.split('"').next().unwrap();
                *found.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
}

#[test]
fn every_point_is_listed_once_and_is_in_the_sources_once() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeMap::new();
    for name in ["agent", "rm-agents", "server", "store"] {
        collect(&crates.join(name).join("src"), &mut found);
    }
    let listed: BTreeMap<String, usize> =
        POINTS.iter().map(|(n, _)| ((*n).to_owned(), 1)).collect();
    assert_eq!(listed.len(), POINTS.len(), "a point is listed twice");
    assert_eq!(found, listed, "left: in the sources, right: listed");
}
