//! `authorizer` in expressions: may this user, or a ServiceAccount, do that?
//! A library of expressions about requests; the answers come from `authz` through `AuthorizerChecks`.
//! Evaluating asks nobody. A question nobody has answered yet fails the evaluation and is kept, so that the caller can
//! have it answered and evaluate once more.

use std::{collections::HashMap, fmt, sync::Arc};

use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value, extractors::This, objects::Opaque};
use parking_lot::Mutex;

use api::names;

pub use ::cel::authorizer::{CHECK_COST, NAME, REQUEST_RESOURCE};
use ::cel::metering;

use crate::authz::{self, Attributes, Decision};

/// What was asked while evaluating, and what is known by now.
#[derive(Clone, Default)]
pub struct AuthorizerChecks(Arc<Mutex<CheckState>>);

#[derive(Default)]
struct CheckState {
    answers: HashMap<Attributes, Decision>,
    open: Vec<Attributes>,
}

impl AuthorizerChecks {
    /// Has everything answered that came up since the last time. `false`: nothing had.
    pub async fn settle(&self, authorizer: &authz::Chain) -> bool {
        let open = std::mem::take(&mut self.0.lock().open);
        for question in &open {
            let answer = authorizer.authorize(question).await;
            self.0.lock().answers.insert(question.clone(), answer);
        }
        !open.is_empty()
    }

    fn answer(&self, question: &Attributes) -> Option<Decision> {
        let mut asked = self.0.lock();
        let known = asked.answers.get(question).cloned();
        if known.is_none() && !asked.open.contains(question) {
            asked.open.push(question.clone());
        }
        known
    }
}

impl fmt::Debug for AuthorizerChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorizerChecks")
    }
}

impl PartialEq for AuthorizerChecks {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AuthorizerChecks {}

/// How far a question is put together.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
    Answered(Decision),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    stage: Stage,
    attributes: Attributes,
    questions: AuthorizerChecks,
}

impl Opaque for Check {
    fn runtime_type_name(&self) -> &str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
            Stage::Answered(_) => "kubernetes.authorization.Decision",
        }
    }
}

/// The two variables of a request by `request.user`: `authorizer`, and `authorizer.requestResource` for what the request
/// itself is about.
pub fn variables(request: Attributes, questions: &AuthorizerChecks) -> [(&'static str, Value); 2] {
    let plain = Attributes { user: request.user.clone(), ..Attributes::default() };
    let value = |stage, attributes| Value::Opaque(Arc::new(Check { stage, attributes, questions: questions.clone() }));
    [(NAME, value(Stage::Authorizer, plain)), (REQUEST_RESOURCE, value(Stage::Resource, request))]
}

type Text = Arc<String>;

pub fn register(context: &mut Context<'static>) {
    context.add_function("path", |This(this): This<Value>, path: Text| {
        step("path", this, &Stage::Authorizer, Stage::Path, |a| a.path = path.to_string())
    });
    context.add_function("group", |This(this): This<Value>, group: Text| {
        step("group", this, &Stage::Authorizer, Stage::Group, |a| a.group = group.to_string())
    });
    context.add_function("serviceAccount", |This(this): This<Value>, namespace: Text, name: Text| {
        // A colon in one of them would make it another account's name.
        if !names::dns_subdomain(&name, false).is_empty() {
            return Err(ExecutionError::function_error("serviceAccount", "Invalid service account name"));
        }
        if !names::dns_label(&namespace, false).is_empty() {
            return Err(ExecutionError::function_error("serviceAccount", "Invalid service account namespace"));
        }
        step("serviceAccount", this, &Stage::Authorizer, Stage::Authorizer, |a| {
            let account = crate::authn::service_account::Reference { name: name.to_string(), uid: String::new() };
            a.user = crate::authn::service_account::user(&namespace, &account).authenticated();
        })
    });
    context.add_function("resource", |This(this): This<Value>, resource: Text| {
        if resource.trim().is_empty() {
            return Err(ExecutionError::function_error("resource", "resource must not be empty"));
        }
        step("resource", this, &Stage::Group, Stage::Resource, |a| {
            a.is_resource = true;
            a.version = "*".into();
            a.resource = resource.to_string();
        })
    });
    type Set = fn(&mut Attributes, String);
    let parts: [(&'static str, Set); 5] = [
        ("subresource", |a, text| a.subresource = text),
        ("namespace", |a, text| a.namespace = text),
        ("name", |a, text| a.name = text),
        ("fieldSelector", |a, text| a.field_selector = text),
        ("labelSelector", |a, text| a.label_selector = text),
    ];
    for (function, set) in parts {
        context.add_function(function, move |This(this): This<Value>, text: Text| {
            step(function, this, &Stage::Resource, Stage::Resource, |a| set(a, text.to_string()))
        });
    }
    context.add_function("check", |This(this): This<Value>, verb: Text| ask(this, &verb));
    context.add_function("allowed", |This(this): This<Value>| {
        Ok(Value::Bool(matches!(answered("allowed", this)?, Decision::Allow(_))))
    });
    context.add_function("denied", |This(this): This<Value>| {
        Ok(Value::Bool(matches!(answered("denied", this)?, Decision::Deny(_))))
    });
    context.add_function("reason", |This(this): This<Value>| {
        let (Decision::Allow(reason) | Decision::Deny(reason) | Decision::NoOpinion(reason)) =
            answered("reason", this)?;
        Ok(Value::String(Arc::new(reason)))
    });
    // An authorizer that fails has no opinion; it never passes its error on.
    context.add_function("errored", |This(this): This<Value>| answered("errored", this).map(|_| Value::Bool(false)));
    context.add_function("error", |This(this): This<Value>| {
        answered("error", this).map(|_| Value::String(Arc::default()))
    });
}

fn own(function: &str, value: Value) -> Result<Check, ExecutionError> {
    let found = match &value {
        Value::Opaque(opaque) => opaque.downcast_ref::<Check>().cloned(),
        _ => None,
    };
    found.ok_or_else(|| ExecutionError::function_error(function, "no such overload"))
}

fn step(function: &str, this: Value, from: &Stage, to: Stage, set: impl FnOnce(&mut Attributes)) -> ResolveResult {
    let mut check = own(function, this)?;
    if check.stage != *from {
        return Err(ExecutionError::function_error(function, "no such overload"));
    }
    set(&mut check.attributes);
    check.stage = to;
    Ok(Value::Opaque(Arc::new(check)))
}

fn ask(this: Value, verb: &str) -> ResolveResult {
    let mut check = own("check", this)?;
    if !matches!(check.stage, Stage::Path | Stage::Resource) {
        return Err(ExecutionError::function_error("check", "no such overload"));
    }
    metering::spend(CHECK_COST)?;
    check.attributes.verb = verb.into();
    let answer = check.questions.answer(&check.attributes);
    check.stage = Stage::Answered(answer.ok_or_else(|| ExecutionError::function_error("check", "not answered yet"))?);
    Ok(Value::Opaque(Arc::new(check)))
}

fn answered(function: &str, this: Value) -> Result<Decision, ExecutionError> {
    match own(function, this)?.stage {
        Stage::Answered(decision) => Ok(decision),
        _ => Err(ExecutionError::function_error(function, "no such overload")),
    }
}
