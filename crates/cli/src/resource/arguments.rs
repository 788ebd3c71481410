//! Types, names and `type/name` pairs.
//! Used by `Selection::select`.
//! Refuses what can't be meant, in kubectl's words.

use std::rc::Rc;

use super::{Info, Selection, items_of, metadata};
use crate::{
    discovery::ApiResource,
    failure::{Failure, Result},
    session::Session,
};

const MISSING: &str = "You must provide one or more resources by argument or filename.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'";

/// What the arguments come to.
enum Named {
    Types(Vec<String>),
    Pairs(Vec<(String, String)>),
}

fn split_pair(argument: &str) -> Result<Option<(String, String)>> {
    if !argument.contains('/') {
        return Ok(None);
    }
    let parts: Vec<&str> = argument.split('/').collect();
    match parts.as_slice() {
        [resource, name] if !resource.is_empty() && !name.is_empty() && !resource.contains(',') => {
            Ok(Some((resource.to_string(), name.to_string())))
        }
        [_, _] => Err(Failure::message("arguments in resource/name form must have a single resource and name")),
        _ => Err(Failure::message("arguments in resource/name form may not have more than one slash")),
    }
}

impl Selection {
    async fn types(&self, session: &Session, words: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for word in words.split(',') {
            let members = match word.contains('.') {
                true => Vec::new(),
                false if session.discovery().await?.find(word).is_some() => Vec::new(),
                false => session.discovery().await?.category(word),
            };
            match members.is_empty() {
                true => found.push(word.to_string()),
                false => found.extend(members),
            }
        }
        Ok(found)
    }

    async fn named(&self, session: &Session) -> Result<Option<Named>> {
        let arguments = &self.arguments;
        if arguments.iter().any(|a| a.contains('/')) {
            let mut pairs = Vec::new();
            for argument in arguments {
                match split_pair(argument)? {
                    Some(pair) => pairs.push(pair),
                    None => {
                        return Err(Failure::message(
                            "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'",
                        ));
                    }
                }
            }
            return Ok(Some(Named::Pairs(pairs)));
        }
        match arguments.as_slice() {
            [] => Ok(None),
            [types] => Ok(Some(Named::Types(self.types(session, types).await?))),
            [types, names @ ..] => {
                let types = self.types(session, types).await?;
                let pairs = types.iter().flat_map(|t| names.iter().map(move |n| (t.clone(), n.clone()))).collect();
                Ok(Some(Named::Pairs(pairs)))
            }
        }
    }

    pub(super) async fn by_arguments(&self, session: &Session) -> Result<(Vec<Info>, Vec<Failure>)> {
        let Some(named) = self.named(session).await? else {
            if self.has_selector() {
                return Err(Failure::message("at least one resource must be specified to use a selector"));
            }
            return Err(Failure::Plain(format!("error: {MISSING}")));
        };
        match named {
            Named::Types(types) => {
                if !(self.has_selector() || self.all || self.allow_empty_selector) {
                    for word in &types {
                        session.resource(word).await?;
                    }
                    return Err(Failure::message("resource(s) were provided, but no name was specified"));
                }
                if !self.subresource.is_empty() {
                    return Err(Failure::message("subresource cannot be used when bulk resources are specified"));
                }
                self.lists(session, &types).await
            }
            Named::Pairs(pairs) => {
                if (self.has_selector() || self.all) && !self.arguments.iter().any(|a| a.contains('/')) {
                    return Err(Failure::message("name cannot be provided when a selector is specified"));
                }
                if self.has_selector() || self.all {
                    return Err(Failure::message(
                        "selectors and the all flag cannot be used when passing resource/name arguments",
                    ));
                }
                self.singles(session, &pairs).await
            }
        }
    }

    async fn lists(&self, session: &Session, types: &[String]) -> Result<(Vec<Info>, Vec<Failure>)> {
        let (mut infos, mut failures) = (Vec::new(), Vec::new());
        let mut resources: Vec<Rc<ApiResource>> = Vec::new();
        for word in types {
            resources.push(session.resource(word).await?);
        }
        if self.single_type && resources.len() > 1 {
            return Err(Failure::message("you may only specify a single resource type"));
        }
        for resource in resources {
            let chunks = match self.list(session, &resource).await {
                Ok(chunks) => chunks,
                Err(failure) if self.ignore_not_found && failure.is_not_found() => continue,
                Err(failure) => {
                    failures.push(failure);
                    continue;
                }
            };
            for chunk in chunks {
                if self.keep_lists || chunk["kind"] == "Table" {
                    let namespace = if resource.namespaced { self.namespace.clone() } else { String::new() };
                    infos.push(Info {
                        resource: resource.clone(),
                        namespace,
                        name: String::new(),
                        source: String::new(),
                        object: chunk,
                    });
                    continue;
                }
                infos.extend(items_of(chunk).into_iter().map(|object| Info {
                    resource: resource.clone(),
                    namespace: metadata(&object, "namespace").to_string(),
                    name: metadata(&object, "name").to_string(),
                    source: String::new(),
                    object,
                }));
            }
        }
        Ok((infos, failures))
    }

    async fn singles(&self, session: &Session, pairs: &[(String, String)]) -> Result<(Vec<Info>, Vec<Failure>)> {
        let mut places = Vec::new();
        for (word, name) in pairs {
            let resource = session.resource(word).await?;
            if resource.namespaced && self.all_namespaces {
                return Err(Failure::message("a resource cannot be retrieved by name across all namespaces"));
            }
            let namespace = if resource.namespaced { self.namespace.clone() } else { String::new() };
            places.push(Info {
                resource,
                namespace,
                name: name.clone(),
                source: String::new(),
                object: Default::default(),
            });
        }
        if self.single_type && places.iter().any(|p| p.resource != places[0].resource) {
            return Err(Failure::message("you may only specify a single resource type"));
        }
        if self.no_fetch {
            return Ok((places, Vec::new()));
        }
        let (mut infos, mut failures) = (Vec::new(), Vec::new());
        for info in places {
            match self.fetch(session, &info).await {
                Ok(object) => infos.push(Info { object, ..info }),
                Err(failure) if self.ignore_not_found && failure.is_not_found() => {}
                Err(failure) => failures.push(failure),
            }
        }
        Ok((infos, failures))
    }
}
