//! What `main` asks about a command before it runs it.
//! Beside the commands themselves, in `flags`.

use super::Command;

impl Command {
    /// Commands that do their work, print and end.
    pub fn only_prints(&self) -> bool {
        match self {
            Self::Up(up) => !up.foreground,
            Self::Server(server) => server.command.is_some(),
            other => {
                let is_kubectl =
                    matches!(other, Self::Kubectl { .. } | Self::Why { .. } | Self::Timeline { .. } | Self::Top { .. });
                let runs = matches!(
                    other,
                    Self::Agent(_)
                        | Self::Apiserver(_)
                        | Self::ControllerManager(_)
                        | Self::Scheduler(_)
                        | Self::Kubelet(_)
                        | Self::Proxy(_)
                        | Self::Dns(_)
                        | Self::Ingress(_)
                );
                is_kubectl || !runs
            }
        }
    }

    /// As it is typed.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Up(_) => "up",
            Self::Down(_) => "down",
            Self::Server(_) => "server",
            Self::Agent(_) => "agent",
            Self::Apiserver(_) => "apiserver",
            Self::ControllerManager(_) => "controller-manager",
            Self::Scheduler(_) => "scheduler",
            Self::Kubelet(_) => "kubelet",
            Self::Proxy(_) => "proxy",
            Self::Dns(_) => "dns",
            Self::Ingress(_) => "ingress",
            Self::Node(_) => "node",
            Self::Etcd(_) => "etcd",
            Self::Image(_) => "image",
            Self::Store(_) => "store",
            Self::Certs(_) => "certs",
            Self::Install(_) => "install",
            Self::Uninstall(_) => "uninstall",
            _ => "",
        }
    }

    /// Whether a kubelet is part of the process.
    pub fn runs_kubelet(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Agent(_) | Self::Kubelet(_))
    }
}
