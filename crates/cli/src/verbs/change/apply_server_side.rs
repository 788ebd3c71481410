//! `kubectl apply --server-side`: the server merges, and says who else owns a field.
//! Used by `apply`.
//! Conflicts are explained, never forced by themselves.

use http::Method;
use serde_json::Value;

use super::{apply_migration, field_validation};
use crate::{
    failure::{Failure, Result},
    flags::Matches,
    printers::operation::DryRun,
    resource::Info,
    session::Session,
};

const CONFLICT_ADVICE: &str = "
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts";

pub async fn apply(
    session: &Session,
    matches: &Matches,
    info: &Info,
    dry_run: DryRun,
) -> Result<(Value, &'static str)> {
    let manager = match matches.changed("field-manager") {
        true => matches.str("field-manager"),
        false => "kubectl",
    };
    let path = match matches.str("subresource") {
        "" => info.path()?,
        sub => format!("{}/{sub}", info.path()?),
    };
    let answer = send(session, matches, info, &path, manager, dry_run).await?;
    // What the server answers shows whether client-side apply was there before.
    if dry_run == DryRun::None
        && matches.str("subresource").is_empty()
        && apply_migration::run(session, info, manager, answer.clone()).await
    {
        return match send(session, matches, info, &path, manager, dry_run).await {
            Ok(object) => Ok((object, "serverside-applied")),
            Err(failure) => {
                session.output.warn(&format!(
                    "Warning: failed to re-apply configuration after performing Server-Side Apply migration. This is non-fatal and will be retried next time you apply. Error: {}",
                    failure.text()
                ));
                Ok((answer, "serverside-applied"))
            }
        };
    }
    Ok((answer, "serverside-applied"))
}

async fn send(
    session: &Session,
    matches: &Matches,
    info: &Info,
    path: &str,
    manager: &str,
    dry_run: DryRun,
) -> Result<Value> {
    let sent = session
        .rest()
        .await?
        .call(Method::PATCH, path)
        .query_opt("dryRun", dry_run.query())
        .query("fieldManager", manager)
        .query("fieldValidation", field_validation(matches)?)
        .query("force", matches.bool("force-conflicts").to_string())
        .body("application/apply-patch+yaml", info.object.to_string())
        .about(&info.resource.qualified(), &info.name)
        .value()
        .await;
    match sent {
        Ok(object) => Ok(object),
        Err(failure) if failure.is_conflict() => Err(Failure::message(format!("{}{CONFLICT_ADVICE}", failure.text()))),
        Err(failure) => Err(failure),
    }
}
