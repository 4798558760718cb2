//! Ports of pods through the API server.

use std::net::SocketAddr;
use std::time::Duration;

use det_ids::ContainerId;
use det_kube_double::listen;
use det_lifecycle::container::DesiredState;
use det_rm::{ContainerAddress, Health, Reach as _, ReachError};
use det_rm_contract::{TestCore, within};
use det_rm_kube::{Exposure, PodStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Pod, Scene};

const PORT: u16 = 8888;
/// A refusal is waited for as long as this; what listens answers first in these tests.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// A manager that forwards ports, with a container whose pod runs.
async fn forwarding(refused_within: Duration) -> (Scene, ContainerId, Pod) {
    let scene = Scene::start_with(TestCore::default(), |settings| {
        settings.exposure = Exposure::PortForward { refused_within };
    })
    .await;
    scene.api.add_node("a", 2);
    scene.has_slots("a", 2).await;
    let id = scene.core.place("a", "c", 1);
    let pod = scene.runs(&id).await;
    (scene, id, pod)
}

/// Something that listens on the port of a pod.
async fn listener(scene: &Scene, pod: &Pod) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: SocketAddr = listener.local_addr().unwrap();
    listen(&scene.api, (&pod.namespace, &pod.name), PORT, at);
    listener
}

fn address(id: &ContainerId, host_address: &str) -> ContainerAddress {
    ContainerAddress {
        manager: "k".to_owned(),
        place: "a".into(),
        container_id: id.clone(),
        host_address: host_address.to_owned(),
    }
}

async fn dial(scene: &Scene, id: &ContainerId) -> Result<PodStream, ReachError> {
    // Nothing connects to its address.
    let container = address(id, "192.0.2.1");
    within("a dial", scene.reach.dial(&container, PORT)).await
}

async fn refusal(scene: &Scene, id: &ContainerId) -> String {
    match dial(scene, id).await {
        Err(ReachError::Unreachable(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// A connection from its caller to what listens in the pod.
async fn connected(scene: &Scene, id: &ContainerId, pod: &Pod) -> (PodStream, TcpStream) {
    let listener = listener(scene, pod).await;
    let stream = dial(scene, id).await.unwrap();
    let (service, _) = within("a connection", listener.accept()).await.unwrap();
    (stream, service)
}

#[tokio::test]
async fn bytes_of_a_port_go_through_the_api_server_both_ways() {
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let (mut stream, mut service) = connected(&scene, &id, &pod).await;
    stream.write_all(b"question").await.unwrap();
    stream.flush().await.unwrap();
    let mut buffer = [0; 8];
    within("a question", service.read_exact(&mut buffer))
        .await
        .unwrap();
    assert_eq!(&buffer, b"question");
    service.write_all(b"answer..").await.unwrap();
    within("an answer", stream.read_exact(&mut buffer))
        .await
        .unwrap();
    assert_eq!(&buffer, b"answer..");
    // It ends with what listens.
    drop(service);
    let mut rest = Vec::new();
    within("the end", stream.read_to_end(&mut rest))
        .await
        .unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn what_a_service_sends_first_is_not_waited_for() {
    let (scene, id, pod) = forwarding(REFUSED_WITHIN).await;
    let listener = listener(&scene, &pod).await;
    let speaks = async {
        let (mut service, _) = listener.accept().await.unwrap();
        service.write_all(b"SSH-2.0").await.unwrap();
        service
    };
    let (stream, _service) = tokio::join!(dial(&scene, &id), speaks);
    let mut buffer = [0; 7];
    within("a greeting", stream.unwrap().read_exact(&mut buffer))
        .await
        .unwrap();
    assert_eq!(&buffer, b"SSH-2.0");
    // The port is known to be listened on: nothing is waited for, although nothing is sent.
    let (next, service) = tokio::join!(dial(&scene, &id), listener.accept());
    drop((next.unwrap(), service.unwrap()));
}

#[tokio::test]
async fn large_bodies_arrive_whole_while_both_sides_send() {
    const MEBIBYTES: usize = 8;
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let (stream, service) = connected(&scene, &id, &pod).await;
    let body: Vec<u8> = (0..MEBIBYTES << 20)
        .map(|at: usize| u8::try_from(at % 251).unwrap())
        .collect();
    let (mut from_pod, mut to_pod) = tokio::io::split(stream);
    let (mut from_caller, mut to_caller) = service.into_split();
    let (up, down) = (body.clone(), body.clone());
    // Each writes all before it reads: neither direction waits for the other one's reader.
    let sent = tokio::spawn(async move {
        to_pod.write_all(&up).await.unwrap();
        to_pod.flush().await.unwrap();
        to_pod
    });
    let answered = tokio::spawn(async move {
        let mut received = vec![0; MEBIBYTES << 20];
        from_caller.read_exact(&mut received).await.unwrap();
        to_caller.write_all(&down).await.unwrap();
        received
    });
    let mut received = Vec::new();
    let read = from_pod.read_to_end(&mut received);
    within("the body back", read).await.unwrap();
    assert!(received == body);
    assert!(answered.await.unwrap() == body);
    sent.await.unwrap();
}

#[tokio::test]
async fn a_service_sees_that_its_caller_has_gone() {
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let (stream, mut service) = connected(&scene, &id, &pod).await;
    drop(stream);
    let mut rest = Vec::new();
    within("the end", service.read_to_end(&mut rest))
        .await
        .unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn what_comes_after_the_callers_direction_has_ended_is_read() {
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let (mut stream, mut service) = connected(&scene, &id, &pod).await;
    stream.write_all(b"all").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut buffer = [0; 3];
    within("a request", service.read_exact(&mut buffer))
        .await
        .unwrap();
    service.write_all(b"late answer").await.unwrap();
    drop(service);
    let mut rest = Vec::new();
    within("the answer", stream.read_to_end(&mut rest))
        .await
        .unwrap();
    assert_eq!(rest, b"late answer");
}

#[tokio::test]
async fn a_port_that_nothing_listens_on_is_refused_in_words() {
    let (scene, id, _) = forwarding(REFUSED_WITHIN).await;
    let reason = refusal(&scene, &id).await;
    assert!(
        reason.starts_with("the forward of port 8888 of its pod ended: error forwarding port 8888"),
        "{reason}"
    );
    assert!(reason.contains("connection refused"), "{reason}");
}

#[tokio::test]
async fn a_refusal_that_comes_later_is_the_readers_error() {
    let (scene, id, _) = forwarding(Duration::ZERO).await;
    let reason = match dial(&scene, &id).await {
        Ok(mut stream) => {
            let mut buffer = [0; 1];
            let read = within("an error", stream.read(&mut buffer)).await;
            read.unwrap_err().to_string()
        }
        // It came at once.
        Err(error) => error.to_string(),
    };
    assert!(reason.contains("connection refused"), "{reason}");
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let _listener = listener(&scene, &pod).await;
    for verb in ["get", "create"] {
        let faults = scene.api.faults();
        faults.forbid(verb, "", "pods/portforward", Some("*"));
        let reason = refusal(&scene, &id).await;
        let needed = "its service account needs the verbs \"get\" and \"create\" of \"pods/portforward\" there";
        assert!(reason.contains(needed), "{reason}");
        assert!(reason.contains(&format!("cannot {verb}")), "{reason}");
        faults.allow_all();
    }
    dial(&scene, &id).await.unwrap();
}

#[tokio::test]
async fn a_stream_ends_with_its_pod() {
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let (mut stream, _service) = connected(&scene, &id, &pod).await;
    scene.core.want(&id, DesiredState::Kill);
    scene.deleted_with_less(&id, 11).await;
    scene.finish_deletion(&id);
    let mut rest = Vec::new();
    within("the end", stream.read_to_end(&mut rest))
        .await
        .unwrap();
    scene.has_ended(&id).await;
    scene.is_empty().await;
    scene.core.remove(&id);
    let reason = refusal(&scene, &id).await;
    assert_eq!(reason, "its pod on node \"a\" does not exist any more");
}

#[tokio::test]
async fn a_connection_that_breaks_is_an_error_and_no_end() {
    let (scene, id, pod) = forwarding(Duration::ZERO).await;
    let (mut stream, _service) = connected(&scene, &id, &pod).await;
    scene.api.faults().unreachable(true);
    let mut rest = Vec::new();
    let read = within("the end", stream.read_to_end(&mut rest)).await;
    let reason = read.unwrap_err().to_string();
    assert!(
        reason.starts_with("the forward of port 8888 of its pod ended: "),
        "{reason}"
    );
    // The API server is away.
    let reason = refusal(&scene, &id).await;
    assert!(reason.starts_with("port 8888 of its pod \""), "{reason}");
}

#[tokio::test]
async fn pods_are_reached_after_the_manager_begins_anew_and_as_it_is_configured_then() {
    let (mut scene, id, pod) = forwarding(Duration::ZERO).await;
    scene.restart().await;
    scene.is_quiet("a").await;
    let (mut stream, mut service) = connected(&scene, &id, &pod).await;
    service.write_all(b"x").await.unwrap();
    let mut buffer = [0; 1];
    within("a byte", stream.read_exact(&mut buffer))
        .await
        .unwrap();
    scene.stop().await;
    scene.reconfigure(|settings| settings.exposure = Exposure::PodIp);
    scene.begin();
    scene.is_quiet("a").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let container = address(&id, "127.0.0.1");
    let dialed = within("a dial", scene.reach.dial(&container, at.port())).await;
    assert!(matches!(dialed, Ok(PodStream::Direct(_))), "{dialed:?}");
}

#[tokio::test]
async fn a_cluster_without_access_is_the_reason() {
    let core = TestCore::default();
    let scene = Scene::start_with(core, |settings| {
        settings.kubeconfig = Some("/nonexistent/kubeconfig".into());
        settings.exposure = Exposure::PortForward {
            refused_within: Duration::ZERO,
        };
    })
    .await;
    scene
        .has_health("down", |health| matches!(health, Health::Down(_)))
        .await;
    let reason = refusal(&scene, &"c".into()).await;
    assert_eq!(
        reason,
        "resource manager \"k\" has no access to its cluster yet"
    );
}
