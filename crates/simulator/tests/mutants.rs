//! The checks can fail: each deliberate defect of the glue is found, and what was found before stays found.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeSet;

use det_simulator::{History, Mutant, play, shrink};

const HOURS: u32 = 8;

/// Histories that once failed, or that show a defect. None breaks anything; one whose file is named for a deliberate
/// defect does with it, and every such defect has one.
#[test]
fn every_deliberate_defect_is_found_and_what_was_found_stays_mended() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions");
    let mut shown = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        // Others are named for the seed that failed once, or for what was wrong.
        let defect: Option<Mutant> = serde_json::from_str(&format!("\"{name}\"")).ok();
        let text = std::fs::read_to_string(&path).unwrap();
        let history: History = serde_json::from_str(&text).unwrap();
        let outcome = play(&history, None);
        assert_eq!(outcome.violation, None, "{}", path.display());
        let Some(defect) = defect else { continue };
        let Some(found) = play(&history, Some(defect)).violation else {
            panic!(
                "{}: does not show its defect any more; make another one",
                path.display()
            );
        };
        println!("{defect:?}: {}", found.violation);
        shown.insert(defect);
    }
    let unseen: Vec<Mutant> = Mutant::ALL
        .into_iter()
        .filter(|mutant| !shown.contains(mutant))
        .collect();
    assert_eq!(unseen, [], "no history shows these defects");
}

#[test]
fn a_failing_history_is_made_small_and_fails_the_same_way() {
    let mutant = Some(Mutant::DoublePlacement);
    let (history, number) = (1..)
        .find_map(|seed| {
            let history = History::of(seed, HOURS);
            let found = play(&history, mutant).violation?;
            Some((history, found.violation.number))
        })
        .unwrap();
    let small = shrink(&history, mutant);
    assert!(
        small.steps.len() <= 4 && small.steps.len() < history.steps.len(),
        "{:?}",
        small.steps
    );
    let again = play(&small, mutant).violation.unwrap();
    assert_eq!(again.violation.number, number);
}
