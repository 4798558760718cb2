//! Model definitions of experiments: packed, as trees, file by file, and their bounds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::experiments::{PATH, config, create};
use crate::support::Cluster;

#[tokio::test]
async fn the_model_definition_comes_back_in_every_form() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    create(&client, &config("my \"model\""), false).await;
    let archive = client.get(&format!("{PATH}/1/model_def")).await.ok()["b64Tgz"]
        .as_str()
        .unwrap()
        .to_owned();
    let archive = STANDARD.decode(archive).unwrap();
    assert_eq!(archive[..2], [0x1f, 0x8b]);
    let plain = client
        .send(Method::GET, "/experiments/1/model_def", None)
        .await;
    assert_eq!(plain.status(), 200);
    assert_eq!(
        plain.headers()["content-disposition"],
        "attachment; filename=\"exp1_my__model__model_def.tar.gz\""
    );
    assert_eq!(plain.bytes().await.unwrap(), archive);

    let tree = client.get(&format!("{PATH}/1/file_tree")).await.ok();
    assert_eq!(tree["files"][0]["isDir"], true);
    assert_eq!(tree["files"][0]["files"][0]["path"], "sub/train.py");
    assert_eq!(tree["files"][0]["files"][0]["contentLength"], 15);
    let file = client
        .post(&format!("{PATH}/1/file"), json!({"path": "sub/train.py"}))
        .await
        .ok();
    assert_eq!(
        STANDARD.decode(file["file"].as_str().unwrap()).unwrap(),
        b"print('hello')\n"
    );
    let file = client
        .get("/experiments/1/file/download?path=sub/train.py")
        .await;
    assert_eq!((file.status, file.text.as_str()), (200, "print('hello')\n"));
    assert_eq!(
        file.headers["content-disposition"],
        "attachment; filename=\"train.py\""
    );

    assert!(
        client
            .post(&format!("{PATH}/1/file"), json!({}))
            .await
            .refused(400)
            .contains("path")
    );
    assert!(
        client
            .post(&format!("{PATH}/1/file"), json!({"path": "sub"}))
            .await
            .refused(400)
            .contains("directory")
    );
    assert!(
        client
            .post(&format!("{PATH}/1/file"), json!({"path": "no"}))
            .await
            .refused(404)
            .contains("no")
    );
    for path in [
        "/api/v1/experiments/99/model_def",
        "/api/v1/experiments/99/file_tree",
        "/experiments/99/model_def",
        "/experiments/99/file/download?path=x",
    ] {
        assert!(client.get(path).await.refused(404).contains("99"), "{path}");
        client.assert_needs_token(Method::GET, path).await;
    }
    // A fork without files has its parent's.
    let fork = json!({"config": config("fork").to_string(), "parentId": 1});
    assert_eq!(
        client.post(PATH, fork).await.ok()["experiment"]["forkedFrom"],
        1
    );
    assert_eq!(client.get(&format!("{PATH}/2/file_tree")).await.ok(), tree);
    cluster.stop().await;
}

#[tokio::test]
async fn a_model_definition_is_shown_whatever_its_size_and_has_few_directories() {
    let cluster = Cluster::start().await;
    let client = cluster.determined().await;
    let file = |path: String, content: &[u8]| json!({"path": path, "type": 48, "content": STANDARD.encode(content), "mtime": "7", "mode": 420});
    let submit = async |files: Vec<Value>| {
        let config = config("files").to_string();
        let body = json!({"config": config, "modelDefinition": files, "activate": false});
        client.post(PATH, body).await
    };
    let noise: Vec<u8> = (0..700_000_u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
        .collect();
    let mut files: Vec<Value> = (0..3_000)
        .map(|n| file(format!("data/{n}/part/x.txt"), b""))
        .collect();
    files.push(file("noise".into(), &noise));
    assert!(submit(files).await.ok()["experiment"]["id"] == 1);
    let tree = client.get(&format!("{PATH}/1/file_tree")).await.ok();
    assert_eq!(tree["files"][0]["files"].as_array().unwrap().len(), 3_000);
    assert_eq!(
        tree["files"][0]["files"][9]["files"][0]["files"][0]["contentType"],
        "text/plain; charset=utf-8"
    );
    assert_eq!(tree["files"][1]["contentLength"], noise.len());
    let shown = client
        .post(&format!("{PATH}/1/file"), json!({"path": "noise"}))
        .await
        .ok();
    assert!(shown["file"] == STANDARD.encode(&noise));
    let path = "/experiments/1/file/download?path=noise";
    let response = client.send(Method::GET, path, None).await;
    assert_eq!(response.content_length(), Some(noise.len() as u64));
    assert!(response.bytes().await.unwrap() == noise);

    let deep = |n: u32| file(format!("{n}/{}f", "d/".repeat(62)), b"");
    let refused = submit((0..1_588).map(deep).collect()).await.refused(413);
    assert!(
        refused.contains("has 100044 directories; at most 100000 are allowed"),
        "{refused}"
    );
    let refused = submit(vec![file("d/".repeat(64) + "f", b"")])
        .await
        .refused(400);
    assert!(refused.contains("at most 64"), "{refused}");
    cluster.stop().await;
}
