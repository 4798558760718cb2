use super::*;

fn row(id: i64, revision: i64, name: &str) -> Row {
    Row {
        id: ExperimentId(id),
        revision,
        owner_id: UserId(1),
        project_id: ProjectId(1),
        parent_id: None,
        name_folded: name.to_owned(),
        description_held: String::new(),
        description_is_cut: false,
        labels: "[]".into(),
        state: "COMPLETED".into(),
        archived: false,
        resource_pool: "default".into(),
        progress: 0.0,
        created_at: id,
        ended_at: None,
        trial_count: 1,
        best_metric: None,
        checkpoint_count: 0,
        checkpoint_bytes: 0,
    }
}

fn ids(
    catalogue: &Catalogue,
    sort: Sort,
    descending: bool,
    offset: i64,
    limit: i64,
) -> Vec<ExperimentId> {
    let filter = Filter::default();
    catalogue
        .page(
            &Search::from(&filter),
            sort,
            descending,
            offset,
            limit,
            &HashMap::new(),
        )
        .0
}

#[test]
fn near_and_far_pages_are_in_one_order() {
    let catalogue = Catalogue::new();
    let names: Vec<String> = (0..2000).map(|n| format!("{:03}", n * 7 % 613)).collect();
    let rows = (1..).zip(&names).map(|(id, name)| row(id, id, name));
    catalogue.change(|e| e.ingest(rows.collect(), &[])).unwrap();
    for descending in [false, true] {
        let all = ids(&catalogue, Sort::Name, descending, 0, -1);
        assert_eq!(all.len(), 2000);
        for (offset, limit) in [(0, 50), (37, 100), (400, 112), (600, 50)] {
            let page = ids(&catalogue, Sort::Name, descending, offset, limit);
            let start = usize::try_from(offset).unwrap();
            assert_eq!(page, all[start..start + usize::try_from(limit).unwrap()]);
        }
    }
}

#[test]
fn labels_that_nothing_has_any_more_are_given_up() {
    let catalogue = Catalogue::new();
    let labelled = |id, revision, label: &str| Row {
        labels: format!("[\"{label}\"]"),
        ..row(id, revision, "n")
    };
    let kept = vec![labelled(1, 1, "kept")];
    catalogue.change(|e| e.ingest(kept, &[])).unwrap();
    for revision in 2..5000 {
        let changed = vec![labelled(2, revision, &format!("label {revision}"))];
        catalogue.change(|e| e.ingest(changed, &[])).unwrap();
    }
    let most = SPARE_LABEL_SETS + 10;
    assert!(catalogue.read(|e| e.label_sets.len() <= most && e.names.texts.len() <= most));
    assert_eq!(catalogue.labels(None), ["kept", "label 4999"]);
    let filter = Filter {
        labels: vec!["kept".to_owned()],
        ..Filter::default()
    };
    let search = Search::from(&filter);
    let (found, _) = catalogue.page(&search, Sort::Id, false, 0, -1, &HashMap::new());
    assert_eq!(found, [ExperimentId(1)]);
}

#[test]
fn changes_and_deletions_are_taken_in_and_their_texts_given_up() {
    let catalogue = Catalogue::new();
    let rows = (1..=3).map(|id| row(id, id, &format!("n{id}"))).collect();
    catalogue.change(|e| e.ingest(rows, &[])).unwrap();
    for revision in 4..40 {
        let changed = vec![row(2, revision, &format!("changed {revision}"))];
        catalogue.change(|e| e.ingest(changed, &[])).unwrap();
    }
    catalogue
        .change(|e| e.ingest(Vec::new(), &[(ExperimentId(3), 40)]))
        .unwrap();
    let filter = Filter {
        name: Some("Changed 39".into()),
        ..Filter::default()
    };
    let search = Search::from(&filter);
    let found = catalogue.page(&search, Sort::Id, false, 0, 10, &HashMap::new());
    assert_eq!(found, (vec![ExperimentId(2)], 1));
    assert_eq!(
        ids(&catalogue, Sort::Id, true, 0, -1),
        [2, 1].map(ExperimentId)
    );
    catalogue.read(|e| {
        assert_eq!((e.revision, e.deleted), (Some(39), 40));
        assert!(e.texts.len() < 60, "{}", e.texts);
    });
}
