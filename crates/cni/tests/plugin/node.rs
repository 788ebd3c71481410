//! A node in network namespaces of its own, its pods and its neighbour; who serves in them and who asks.
//! The stage of the tests in `main`.
//! Every namespace is removed with its node.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::Duration,
};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

pub fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn require_tools() {
    assert!(nix::unistd::geteuid().is_root(), "this test makes network namespaces: run it as root");
    for (tool, package) in [("ip", "iproute2"), ("nft", "nftables")] {
        let found = Command::new(tool).arg("-V").output().is_ok();
        assert!(found, "{tool} is missing: apt-get install -y {package}");
    }
}

/// A node in a namespace of its own, with one neighbour outside of the cluster.
pub struct Node {
    pub name: String,
    pub pods: std::cell::RefCell<Vec<String>>,
    pub data: tempfile::TempDir,
}

impl Node {
    pub fn new(test: &str) -> Self {
        require_tools();
        let name = format!("minke-test-{test}-{}", std::process::id());
        let node = Self { pods: Default::default(), data: tempfile::tempdir().unwrap(), name };
        let n = &node.name;
        shell(&format!(
            "ip netns add {n} && ip netns add {n}-out && ip -n {n} link set lo up && ip -n {n}-out link set lo up && \
             ip -n {n} link add up0 type veth peer name up0 netns {n}-out && \
             ip -n {n} addr add 192.0.2.1/24 dev up0 && ip -n {n}-out addr add 192.0.2.2/24 dev up0 && \
             ip -n {n} addr add 2001:db8::1/64 dev up0 nodad && ip -n {n}-out addr add 2001:db8::2/64 dev up0 nodad && \
             ip -n {n} link set up0 up && ip -n {n}-out link set up0 up && \
             ip -n {n} route add default via 192.0.2.2"
        ));
        node
    }

    pub fn pod(&self, id: &str) -> String {
        let name = format!("{}-{id}", self.name);
        shell(&format!("ip netns add {name}"));
        self.pods.borrow_mut().push(name.clone());
        name
    }

    pub fn conflist(&self) -> Value {
        let params = cni::ConfListParams {
            name: "test".into(),
            bridge: "mk0".into(),
            pod_cidrs: vec!["10.99.0.0/24".parse().unwrap(), "fd99::/64".parse().unwrap()],
            mtu: Some(1400),
            data_dir: self.data.path().into(),
            table: "mk-cni".into(),
            cluster_cidrs: vec!["10.99.0.0/16".parse().unwrap(), "fd99::/56".parse().unwrap()],
            policy_socket: None,
        };
        cni::conflist(&params)
    }

    pub fn conf(&self, ports: Value) -> Value {
        let list = self.conflist();
        let mut conf = list["plugins"][0].clone();
        conf["cniVersion"] = json!("1.1.0");
        conf["name"] = list["name"].clone();
        conf["runtimeConfig"] = json!({ "portMappings": ports });
        conf
    }

    pub fn command(&self, verb: &str, id: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_minke-cni")]);
        command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", id).env("CNI_IFNAME", "eth0");
        command.env("CNI_NETNS", format!("/run/netns/{}-{id}", self.name));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn call(&self, verb: &str, id: &str, conf: &Value) -> Result<Value, Value> {
        self.finish(self.command(verb, id), conf)
    }

    /// The same on a machine whose `nft` refuses everything.
    pub fn call_without_nft(&self, verb: &str, id: &str, conf: &Value) -> Result<Value, Value> {
        let tools = self.data.path().join("tools");
        fs::create_dir_all(&tools).unwrap();
        let nft = tools.join("nft");
        fs::write(&nft, "#!/bin/sh\ncat > /dev/null\necho no room >&2\nexit 1\n").unwrap();
        fs::set_permissions(&nft, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = self.command(verb, id);
        command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
        self.finish(command, conf)
    }

    pub fn finish(&self, mut command: Command, conf: &Value) -> Result<Value, Value> {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let value = match stdout.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&stdout).unwrap(),
        };
        assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
        if status.success() { Ok(value) } else { Err(value) }
    }

    pub fn allocated(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.data.path().join("test")) else { return vec![] };
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.parse::<IpAddr>().is_ok())
            .collect();
        names.sort();
        names
    }

    pub fn nft(&self, command: &str) -> String {
        shell(&format!("ip netns exec {} nft {command}", self.name))
    }

    pub fn veths(&self) -> usize {
        shell(&format!("ip -n {} -o link show type veth", self.name)).matches("veth").count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for name in self.pods.borrow().iter().chain([&self.name, &format!("{}-out", self.name)]) {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Runs on a thread that lives in the namespace.
pub fn inside<T: Send + 'static>(
    namespace: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let file = fs::File::open(PathBuf::from("/run/netns").join(namespace)).unwrap();
    std::thread::spawn(move || {
        setns(file.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
        run()
    })
}

/// Answers every connection with the address it came from.
pub fn serve(namespace: &str, address: &str, connections: usize) -> std::thread::JoinHandle<()> {
    let address: SocketAddr = address.parse().unwrap();
    let (ready, started) = std::sync::mpsc::channel();
    let handle = inside(namespace, move || {
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        for _ in 0..connections {
            let (mut stream, from) = listener.accept().unwrap();
            stream.write_all(from.ip().to_canonical().to_string().as_bytes()).unwrap();
        }
    });
    started.recv().unwrap();
    handle
}

/// How long a busy machine may take for what must happen.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

pub fn ask(namespace: &str, address: &str) -> String {
    ask_within(WAIT_TIMEOUT, namespace, address)
}

pub fn ask_within(patience: Duration, namespace: &str, address: &str) -> String {
    let address: SocketAddr = address.parse().unwrap();
    inside(namespace, move || {
        let mut stream = match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => stream,
            Err(error) => return format!("{:?}", error.kind()),
        };
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
    .join()
    .unwrap()
}
