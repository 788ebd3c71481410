//! `minke console`: an address that opens the console, signed in.
//! Called by `commands`, with the admin's credentials; the page takes the token from the fragment, which no server sees.
//! The token is a ServiceAccount's, made for each ClusterRole on demand; it ends by itself, and with its account.

use anyhow::{Context, Result, bail};
use client::{Client, HttpsTransport, Patch, from_kubeconfig};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde_json::json;

use crate::flags::Console;

const NAMESPACE: &str = "kube-system";
const MANAGER: &str = "minke-console";
const ROLE_NAME_BYTES_MAX: usize = 48;

pub async fn run(flags: &Console) -> Result<()> {
    let instance = flags.data.instance();
    let start = || format!("no cluster runs in {}: start it with `minke up`", flags.data.path.display());
    let connection = from_kubeconfig(&instance.admin_kubeconfig(), MANAGER).with_context(start)?;
    let server = connection.server.clone();
    let client = Client::new(HttpsTransport::new(connection)?);
    let account = account(&flags.cluster_role)?;
    if client.api::<ClusterRole>().find(&flags.cluster_role).await.with_context(start)?.is_none() {
        let role = &flags.cluster_role;
        bail!("there is no ClusterRole {role}: `kubectl get clusterroles` lists them");
    }
    grant(&client, &account, &flags.cluster_role).await?;
    let seconds = i64::try_from(flags.duration.as_secs())?;
    let spec = TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = client.namespaced::<ServiceAccount>(NAMESPACE);
    let made: TokenRequest =
        accounts.create_subresource(&account, "token", &request).await.context("failed to make a token")?;
    let status = made.status.context("the API server made no token")?;
    println!("{}", address(&server, &status.token));
    eprintln!(
        "Signs in as {NAMESPACE}/{account} ({}) until {}. Whoever has the address has its rights; to end it early: \
         kubectl delete serviceaccount -n {NAMESPACE} {account}",
        flags.cluster_role, status.expiration_timestamp.0
    );
    Ok(())
}

/// The fragment stays in the browser.
fn address(server: &str, token: &str) -> String {
    format!("{}{}#token={token}", server.trim_end_matches('/'), console::ROOT)
}

/// One account per role, so that an address never has more rights than it was made with.
fn account(cluster_role: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: char| c != '-';
    let good = cluster_role.chars().all(fits)
        && cluster_role.starts_with(ends)
        && cluster_role.ends_with(ends)
        && cluster_role.len() <= ROLE_NAME_BYTES_MAX;
    match good {
        true => Ok(format!("minke-console-{cluster_role}")),
        false => bail!(
            "--cluster-role {cluster_role} can't name a ServiceAccount: make one yourself, bind it, and sign in with \
             `kubectl create token NAME`"
        ),
    }
}

async fn grant(client: &Client, account: &str, cluster_role: &str) -> Result<()> {
    let apply = |config| Patch::Apply { manager: MANAGER.into(), force: true, config };
    let config = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account, "namespace": NAMESPACE },
        "automountServiceAccountToken": false,
    });
    let accounts = client.namespaced::<ServiceAccount>(NAMESPACE);
    accounts.patch(account, &apply(config)).await.context("failed to make the ServiceAccount")?;
    let config = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": format!("minke:console:{cluster_role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": NAMESPACE }],
    });
    let name = format!("minke:console:{cluster_role}");
    client.api::<ClusterRoleBinding>().patch(&name, &apply(config)).await.context("failed to bind the ClusterRole")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_follow_from_roles_and_never_coincide() {
        let check = |role: &str, expected: Option<&str>| assert_eq!(account(role).ok().as_deref(), expected, "{role}");
        check("cluster-admin", Some("minke-console-cluster-admin"));
        check("view", Some("minke-console-view"));
        check("system:node", None);
        check("system-node-", None);
        check("", None);
        check(&"a".repeat(60), None);
    }

    #[test]
    fn the_token_is_in_the_fragment() {
        assert_eq!(address("https://127.0.0.1:6443/", "a.b"), "https://127.0.0.1:6443/console/#token=a.b");
    }
}
