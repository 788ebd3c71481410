//! Every flag of upstream's v1.35 is known, and the command lines that kubeadm writes are taken.

use clap::{CommandFactory, Parser};

use super::*;
use crate::flags::{Command, Flags};

/// What upstream's sources of v1.35 define, hidden and deprecated flags too; `help` and `version` are every program's.
const UPSTREAM: &str = include_str!("upstream_flags.txt");

fn typed(words: &[&str]) -> Result<Flags, String> {
    let words = arguments(words.iter().map(|word| word.to_string()).collect())?;
    Flags::try_parse_from(words).map_err(|error| error.to_string())
}

#[test]
fn all_flags_of_upstream_are_known() {
    fn check<C: Component>(program: &str, command: &str) {
        let all = Flags::command();
        let command = all.find_subcommand(command).expect("a command of ours");
        let line = UPSTREAM.lines().find_map(|line| line.strip_prefix(program)?.strip_prefix(": "));
        for name in line.expect("a line of the file").split_whitespace() {
            let row = rows::<C>().find(|(known, ..)| *known == name);
            let (_, _, meaning) = row.unwrap_or_else(|| panic!("{program} --{name} is in no table"));
            let global = all.get_arguments().any(|argument| argument.get_long() == Some(name));
            assert!(has_flag(command, name) || global, "{program} --{name} ({meaning:?}) is no flag of the command");
        }
    }
    check::<Apiserver>("kube-apiserver", "apiserver");
    check::<ControllerManager>("kube-controller-manager", "controller-manager");
    check::<Scheduler>("kube-scheduler", "scheduler");
    check::<Proxy>("kube-proxy", "proxy");
    check::<Kubelet>("kubelet", "kubelet");
}

#[test]
fn rows_are_of_one_mind_with_themselves() {
    fn check<C: Component>() {
        for (name, form, meaning) in rows::<C>() {
            if let Meaning::Only(possible, reason) = meaning {
                assert!(!possible.is_empty() && !reason.is_empty(), "{name}");
                let readable =
                    |value: &&str| value.is_empty() || !matches!(form, Form::Flag) || value.parse::<bool>().is_ok();
                assert!(possible.iter().all(readable), "{name}");
            }
        }
    }
    check::<Apiserver>();
    check::<ControllerManager>();
    check::<Scheduler>();
    check::<Proxy>();
}

#[test]
fn command_lines_are_read_as_pflag_reads_them() {
    let check = |words: &[&str], expected: Result<&str, &str>| {
        let words = ["minke", "controller-manager"].iter().chain(words).map(|word| word.to_string()).collect();
        let found = arguments(words).map(|words| words[2..].join(" "));
        assert_eq!(found, expected.map(str::to_string).map_err(str::to_string));
    };
    check(&["--leader_elect"], Ok("--leader-elect=true"));
    check(&["--leader-elect=F", "--kubeconfig", "/k"], Ok("--leader-elect=false --kubeconfig=/k"));
    check(&["--kubeconfig=/a", "--kubeconfig=/b"], Ok("--kubeconfig=/b"));
    check(&["--controllers=*", "--controllers", "-job"], Ok("--controllers=*,-job"));
    check(&["--feature-gates=kube:A=true", "--feature-gates=B=false"], Ok("--feature-gates=A=true,B=false"));
    check(&["-v", "4"], Ok("--v=4"));
    check(&["-v=4", "--data-dir", "/d"], Ok("--data-dir /d --v=4"));
    check(&["-v2"], Ok("--v=2"));
    check(&["--cluster-signing-cert-file="], Ok(""));
    check(&["--terminated-pod-gc-threshold=-1"], Ok("--terminated-pod-gc-threshold=-1"));
    let syntax =
        "invalid argument \"maybe\" for \"--leader-elect\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax";
    check(&["--leader-elect=maybe"], Err(syntax));
    check(&["--kubeconfig"], Err("flag needs an argument: --kubeconfig"));
    let soon = "invalid argument \"soon\" for \"--leader-elect-lease-duration\" flag: time: invalid duration \"soon\"";
    check(&["--leader-elect-lease-duration=soon"], Err(soon));
    let several = ["minke", "apiserver", "--service-account-issuer=https://a", "--service-account-issuer=https://b"];
    let words = arguments(several.map(str::to_string).to_vec()).unwrap();
    assert_eq!(words[2..], ["--service-account-issuer=https://a", "--service-account-issuer=https://b"]);
    // By the name of upstream's program.
    let words = arguments(vec!["/usr/local/bin/kube-scheduler".into(), "--version".into()]).unwrap();
    assert_eq!((words[1].as_str(), version(&words)), ("scheduler", Some("Kubernetes v1.35.0+minke".into())));
    assert_eq!(version(&["minke".to_string(), "up".into(), "--version".into()]), None);
}

/// The commands of the static pods that kubeadm 1.35 writes, and of its kube-proxy.
#[test]
fn kubeadms_command_lines_are_taken() {
    let pki = "/etc/kubernetes/pki";
    let apiserver = format!(
        "kube-apiserver --advertise-address=192.0.2.1 --allow-privileged=true --authorization-mode=Node,RBAC \
         --client-ca-file={pki}/ca.crt --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true \
         --etcd-cafile={pki}/etcd/ca.crt --etcd-certfile={pki}/apiserver-etcd-client.crt \
         --etcd-keyfile={pki}/apiserver-etcd-client.key --etcd-servers=https://127.0.0.1:2379 \
         --kubelet-client-certificate={pki}/apiserver-kubelet-client.crt \
         --kubelet-client-key={pki}/apiserver-kubelet-client.key \
         --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname \
         --proxy-client-cert-file={pki}/front-proxy-client.crt --proxy-client-key-file={pki}/front-proxy-client.key \
         --requestheader-allowed-names=front-proxy-client --requestheader-client-ca-file={pki}/front-proxy-ca.crt \
         --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
         --requestheader-username-headers=X-Remote-User --secure-port=6443 \
         --service-account-issuer=https://kubernetes.default.svc.cluster.local \
         --service-account-key-file={pki}/sa.pub --service-account-signing-key-file={pki}/sa.key \
         --service-cluster-ip-range=10.96.0.0/12 --tls-cert-file={pki}/apiserver.crt \
         --tls-private-key-file={pki}/apiserver.key"
    );
    let conf = "/etc/kubernetes/controller-manager.conf";
    let manager = format!(
        "kube-controller-manager --allocate-node-cidrs=true --authentication-kubeconfig={conf} \
         --authorization-kubeconfig={conf} --bind-address=127.0.0.1 --client-ca-file={pki}/ca.crt \
         --cluster-cidr=10.244.0.0/16 --cluster-name=kubernetes --cluster-signing-cert-file={pki}/ca.crt \
         --cluster-signing-key-file={pki}/ca.key --controllers=*,bootstrapsigner,tokencleaner --kubeconfig={conf} \
         --leader-elect=true --requestheader-client-ca-file={pki}/front-proxy-ca.crt --root-ca-file={pki}/ca.crt \
         --service-account-private-key-file={pki}/sa.key --service-cluster-ip-range=10.96.0.0/12 \
         --use-service-account-credentials=true"
    );
    let conf = "/etc/kubernetes/scheduler.conf";
    let scheduler = format!(
        "kube-scheduler --authentication-kubeconfig={conf} --authorization-kubeconfig={conf} \
         --bind-address=127.0.0.1 --kubeconfig={conf} --leader-elect=true"
    );
    let parse =
        |line: &str| typed(&line.split_whitespace().collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{line}: {e}"));
    match parse(&apiserver).command {
        Command::Apiserver(flags) => {
            flags.others.check().unwrap();
            assert!(flags.server.is_given_certificates());
            assert_eq!(flags.server.port, Some(6443));
            assert_eq!(flags.server.service_cidr, ["10.96.0.0/12".parse().unwrap()]);
        }
        other => panic!("{other:?}"),
    }
    match parse(&manager).command {
        Command::ControllerManager(flags) => {
            flags.others.check().unwrap();
            assert_eq!(flags.use_service_account_credentials, Some(true));
            assert_eq!(flags.port.authentication_kubeconfig.as_deref(), flags.connection.kubeconfig.as_deref());
        }
        other => panic!("{other:?}"),
    }
    match parse(&scheduler).command {
        Command::Scheduler(flags) => assert!(flags.settings().unwrap().0.leader_election.unwrap().leader_elect),
        other => panic!("{other:?}"),
    }
    // With the file of the ConfigMap kube-proxy.
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nbindAddress: 0.0.0.0\n\
                bindAddressHardFail: false\nclientConnection:\n  acceptContentTypes: \"\"\n  burst: 0\n  \
                contentType: \"\"\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n  qps: 0\n\
                clusterCIDR: 10.244.0.0/16\nconfigSyncPeriod: 0s\nconntrack:\n  maxPerCore: null\n  min: null\n  \
                tcpBeLiberal: false\n  tcpCloseWaitTimeout: null\ndetectLocal:\n  bridgeInterface: \"\"\n  \
                interfaceNamePrefix: \"\"\ndetectLocalMode: \"\"\nenableProfiling: false\n\
                healthzBindAddress: \"\"\nhostnameOverride: \"\"\niptables:\n  syncPeriod: 0s\nlogging:\n  \
                flushFrequency: 0\nmetricsBindAddress: \"\"\nmode: \"\"\nnodePortAddresses: null\n\
                oomScoreAdj: null\nportRange: \"\"\nshowHiddenMetricsForVersion: \"\"\nwinkernel:\n  enableDSR: false\n";
    std::fs::write(file.path(), text).unwrap();
    let proxy = format!("kube-proxy --config={} --hostname-override=n1", file.path().display());
    match parse(&proxy).command {
        Command::Proxy(flags) => {
            let agent = flags.agent().unwrap();
            assert_eq!(agent.node.node_name.as_deref(), Some("n1"));
            assert!(agent.kubeconfig.as_deref().is_some_and(|path| path.ends_with("kubeconfig.conf")));
            let settings = crate::flags::proxy_flags::settings(&agent.node).unwrap();
            assert_eq!((settings.healthz, settings.metrics), (None, None), "upstream's defaults, not off");
        }
        other => panic!("{other:?}"),
    }
    // As its drop-in for systemd has them.
    let kubelet = "kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
                   --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml \
                   --container-runtime-endpoint=unix:///var/run/containerd/containerd.sock --housekeeping_interval=10s";
    assert!(matches!(parse(kubelet).command, Command::Kubelet(_)));
}

/// Each flag that does nothing of its own takes what its row says, and no more.
#[test]
fn each_flag_that_does_not_act_takes_what_its_row_says() {
    fn others<C: Component>(name: &'static str, value: &str) -> Result<()> {
        OtherFlags::<C>([(name, value.to_string())].into(), PhantomData).check()
    }
    fn check<C: Component>() {
        for (name, form, meaning) in rows::<C>() {
            let other = match form {
                Form::Flag => None,
                Form::Number | Form::Float => Some("4711"),
                Form::Duration => Some("4711h"),
                Form::Text | Form::List | Form::Array => Some("something-else"),
                Form::Map | Form::Gates => Some("something=else"),
            };
            match meaning {
                Meaning::Acts => {}
                Meaning::Idle(_) => {
                    for value in other.into_iter().chain(["true"].into_iter().filter(|_| other.is_none())) {
                        others::<C>(name, value).unwrap_or_else(|error| panic!("--{name}={value}: {error}"));
                    }
                }
                Meaning::Only(possible, reason) => {
                    for value in *possible {
                        others::<C>(name, value).unwrap_or_else(|error| panic!("--{name}={value}: {error}"));
                    }
                    let flipped = if possible.contains(&"true") { "false" } else { "true" };
                    let value = other.unwrap_or(flipped);
                    let error = others::<C>(name, value).expect_err(name).to_string();
                    assert_eq!(error, format!("--{name}={value} is not supported: {reason}"));
                }
            }
        }
    }
    check::<Apiserver>();
    check::<ControllerManager>();
    check::<Scheduler>();
    check::<Proxy>();
}

#[test]
fn what_is_not_done_here_is_refused_with_a_reason() {
    let check = |flag: &str, expected: &str| {
        let found = typed(&["minke", "apiserver", flag]).and_then(|flags| match flags.command {
            Command::Apiserver(flags) => flags.others.check().map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        });
        assert_eq!(found.err().unwrap_or_default(), expected, "{flag}");
    };
    check("--goaway-chance=0", "");
    check("--goaway-chance=0.001", "--goaway-chance=0.001 is not supported: connections are kept");
    check("--livez-grace-period=0", "");
    check("--watch-cache=false", "--watch-cache=false is not supported: every watch is served from it");
    check("--watch-cache-sizes=a#1", "");
    check("--emulated-version=kube=1.35", "");
    let other = "--emulated-version=1.33 is not supported: components are of v1.35 and emulate no other";
    check("--emulated-version=1.33", other);
}
