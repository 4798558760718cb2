//! A real API server, through `kubectl proxy`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// What the server answers to a change.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// The template as it is then.
    Object(Value),
    /// It refuses; for invalid pods with each reason.
    Refused { code: u16, causes: Value },
}

/// A connection; ends its proxy and deletes its object when dropped.
pub(crate) struct ApiServer {
    proxy: Child,
    stream: BufReader<TcpStream>,
    path: String,
    exists: bool,
}

const COLLECTION: &str = "/api/v1/namespaces/default/podtemplates";

impl ApiServer {
    /// Starts a proxy to the cluster of a kubeconfig.
    pub(crate) fn of(kubeconfig: &str) -> Self {
        let mut proxy = Command::new("kubectl")
            .args(["--kubeconfig", kubeconfig, "proxy", "--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(proxy.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        Self {
            stream: BufReader::new(stream),
            path: format!("{COLLECTION}/pod-merge-{}", proxy.id()),
            proxy,
            exists: false,
        }
    }

    pub(crate) fn get(&mut self, path: &str) -> Value {
        let (code, answer) = self.request("GET", path, "", "");
        assert_eq!(code, 200, "{answer}");
        answer
    }

    /// Puts a template in place of the one that the object has. `dry` = nothing is stored.
    pub(crate) fn replace(&mut self, template: &Value, dry: bool) -> Answer {
        let name = self.path.rsplit('/').next().unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": template,
        });
        let (method, path) = match (self.exists, dry) {
            (false, _) => ("POST", COLLECTION.to_owned()),
            (true, false) => ("PUT", self.path.clone()),
            (true, true) => ("PUT", format!("{}?dryRun=All", self.path)),
        };
        let answer = self.change(method, &path, "application/json", &object);
        self.exists |= matches!(answer, Answer::Object(_));
        answer
    }

    /// What a strategic merge patch would make of the template.
    pub(crate) fn patch(&mut self, patch: &Value) -> Answer {
        let path = format!("{}?dryRun=All", self.path);
        let body = json!({"template": patch});
        self.change(
            "PATCH",
            &path,
            "application/strategic-merge-patch+json",
            &body,
        )
    }

    fn change(&mut self, method: &str, path: &str, kind: &str, body: &Value) -> Answer {
        let (code, mut answer) = self.request(method, path, kind, &body.to_string());
        if code == 200 || code == 201 {
            return Answer::Object(answer["template"].take());
        }
        let causes = match answer["details"]["causes"].take() {
            Value::Null => answer["message"].take(),
            causes => causes,
        };
        Answer::Refused { code, causes }
    }

    fn request(&mut self, method: &str, path: &str, kind: &str, body: &str) -> (u16, Value) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all((head + body).as_bytes()).unwrap();
        let status = self.line();
        let code = status.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = 0;
        let mut is_chunked = false;
        loop {
            let line = self.line().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            is_chunked |= line == "transfer-encoding: chunked";
        }
        let mut text = Vec::new();
        if is_chunked {
            loop {
                let size = usize::from_str_radix(&self.line(), 16).unwrap();
                self.read(size, &mut text);
                self.line();
                if size == 0 {
                    break;
                }
            }
        } else {
            self.read(length, &mut text);
        }
        (code, serde_json::from_slice(&text).unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn read(&mut self, size: usize, text: &mut Vec<u8>) {
        let start = text.len();
        text.resize(start + size, 0);
        self.stream.read_exact(&mut text[start..]).unwrap();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if self.exists && !std::thread::panicking() {
            let path = self.path.clone();
            self.request("DELETE", &path, "application/json", "");
        }
        self.proxy.kill().unwrap();
        self.proxy.wait().unwrap();
    }
}
