//! What calls of functions and operators cost at most: the language's own, those of cel-go's extensions, and those of
//! Kubernetes.
//! Used by `estimator`.
//! Where a type is not known, the dearest overload counts.

use kube_cel::cel::common::ast::operators;

use super::{
    estimator::{CostEstimator, Node},
    size::{
        EntrySize, LIST_CREATE_BASE_COST, REGEX_STRING_LENGTH_COST_FACTOR, STRING_TRAVERSAL_COST_FACTOR,
        STRUCT_CREATE_BASE_COST, SizeEstimate, by_factor,
    },
};
use crate::{authorizer::CHECK_COST, types::Type};

/// The longest pattern behind a named format.
const NAMED_FORMAT_REGEX_SIZE_MAX: f64 = 128.0;
/// The longest name of a format.
const FORMAT_SIZE_MAX: u64 = 64;
/// The bytes of an IPv6 address.
const IP_SIZE: SizeEstimate = SizeEstimate { min: 4, max: 16 };
/// The shortest requirement of a selector has two characters.
const SELECTOR_LENGTH_TO_REQUIREMENT_COUNT: f64 = 0.5;

/// What a call costs, together with its arguments, and what it returns.
pub struct CallEstimate {
    pub cost: u64,
    pub kind: Type,
    pub size: Option<SizeEstimate>,
    pub entry: Option<EntrySize>,
}

pub fn estimate(estimator: &CostEstimator, name: &str, target: Option<&Node>, arguments: &[Node]) -> CallEstimate {
    let argument_cost = arguments.iter().fold(0u64, |sum, argument| sum.saturating_add(argument.cost));
    if let [left, right] = arguments
        && let Some(found) = binary(name, left, right, argument_cost)
    {
        return found;
    }
    if let (operators::CONDITIONAL, [condition, yes, no]) = (name, arguments) {
        return CallEstimate {
            cost: condition.cost.saturating_add(yes.cost.max(no.cost)),
            kind: yes.kind.clone().join(no.kind.clone()),
            size: Some(yes.size().union(no.size())),
            entry: EntrySize::union(yes.entry, no.entry),
        };
    }
    let kinds: Vec<Type> = arguments.iter().map(|argument| argument.kind.clone()).collect();
    let kind = match (name, kinds.as_slice()) {
        (operators::LOGICAL_NOT | operators::NOT_STRICTLY_FALSE, _) => Type::Bool,
        (operators::NEGATE, [operand]) => operand.clone(),
        _ => Type::returned_by(name, target.map(|target| &target.kind), &kinds),
    };
    let (cost, size) = list_call(name, target, arguments)
        .or_else(|| kubernetes_call(estimator, name, target, arguments))
        .or_else(|| standard_call(name, target, arguments))
        .unwrap_or((1, None));
    CallEstimate { cost: cost.saturating_add(argument_cost), kind, size, entry: None }
}

fn binary(name: &str, left: &Node, right: &Node, argument_cost: u64) -> Option<CallEstimate> {
    let plain = |cost: u64, kind: Type| CallEstimate { cost, kind, size: None, entry: None };
    let with_arguments = |cost: u64| cost.saturating_add(argument_cost);
    Some(match name {
        operators::LOGICAL_AND | operators::LOGICAL_OR => plain(argument_cost, Type::Bool),
        operators::EQUALS | operators::NOT_EQUALS => {
            let cost = match name {
                operators::EQUALS => equality(left, right),
                _ => comparison(left, right),
            };
            plain(with_arguments(cost), Type::Bool)
        }
        operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
            let texts = left.kind.may_be_string() && right.kind.may_be_string();
            let bytes = left.kind.may_be_bytes() && right.kind.may_be_bytes();
            let known = matches!((&left.kind, &right.kind), (Type::String, _) | (_, Type::String))
                || matches!((&left.kind, &right.kind), (Type::Bytes, _) | (_, Type::Bytes));
            let numbers = u64::from(!known);
            let cost = if texts || bytes { comparison(left, right).max(numbers) } else { 1 };
            plain(with_arguments(cost), Type::Bool)
        }
        operators::IN => {
            let cost = if right.kind.may_be_list() { right.size().cost(1.0) } else { 0 };
            plain(with_arguments(if right.kind.may_be_map() { cost.max(1) } else { cost }), Type::Bool)
        }
        operators::ADD => addition(left, right, argument_cost),
        operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO => {
            let kind = match (name, &left.kind, &right.kind) {
                (operators::SUBSTRACT, Type::Timestamp, Type::Timestamp) => Type::Duration,
                _ => left.kind.clone().join(right.kind.clone()),
            };
            plain(with_arguments(1), kind)
        }
        operators::INDEX => plain(with_arguments(1), left.kind.element()),
        operators::OPT_INDEX => plain(with_arguments(1), left.kind.element().optional()),
        _ => return None,
    })
}

/// Both are gone through as far as the shorter one goes.
fn comparison(left: &Node, right: &Node) -> u64 {
    by_factor(left.size().max.min(right.size().max), STRING_TRAVERSAL_COST_FACTOR)
}

fn equality(left: &Node, right: &Node) -> u64 {
    match (&left.kind, &right.kind) {
        (Type::Named(a), Type::Named(b)) if a == b => match *a {
            "kubernetes.NamedFormat" => by_factor(FORMAT_SIZE_MAX, STRING_TRAVERSAL_COST_FACTOR),
            "kubernetes.URL" => right.size.unwrap_or(SizeEstimate::fixed(1)).traversal_cost(),
            _ => 1,
        },
        _ => comparison(left, right),
    }
}

fn addition(left: &Node, right: &Node, argument_cost: u64) -> CallEstimate {
    let both = |may_be: fn(&Type) -> bool| may_be(&left.kind) && may_be(&right.kind);
    let (text, bytes, list) = (both(Type::may_be_string), both(Type::may_be_bytes), both(Type::may_be_list));
    let size = left.size().add(right.size());
    let traversal = if text || bytes { size.traversal_cost() } else { 0 };
    // Lists, numbers and times cost one.
    let only_text = matches!(left.kind, Type::String | Type::Bytes);
    let cost = if only_text { traversal } else { traversal.max(1) };
    let kind = match (&left.kind, &right.kind) {
        (Type::Timestamp, Type::Duration) | (Type::Duration, Type::Timestamp) => Type::Timestamp,
        _ => left.kind.clone().join(right.kind.clone()),
    };
    let sized = text || bytes || list;
    CallEstimate {
        cost: cost.saturating_add(argument_cost),
        kind,
        size: sized.then_some(size),
        entry: sized.then(|| EntrySize::union(left.entry, right.entry)).flatten(),
    }
}

type Estimate = Option<(u64, Option<SizeEstimate>)>;

/// A text that a pattern is looked for in.
fn regex(text: SizeEstimate, pattern: SizeEstimate) -> u64 {
    let text = text.add(SizeEstimate::fixed(1)).traversal_cost();
    text.saturating_mul(pattern.cost(REGEX_STRING_LENGTH_COST_FACTOR))
}

fn standard_call(name: &str, target: Option<&Node>, arguments: &[Node]) -> Estimate {
    Some(match (name, target, arguments) {
        ("format", Some(target), _) => (target.size().traversal_cost(), None),
        ("bytes", None, [text]) if text.kind.may_be_string() => {
            let size = text.size();
            (size.traversal_cost(), Some(SizeEstimate { min: size.min, max: size.max.saturating_mul(4) }))
        }
        ("string", None, [bytes]) if bytes.kind.may_be_bytes() => {
            let size = bytes.size();
            (size.traversal_cost().max(1), Some(SizeEstimate { min: size.min / 4, max: size.max }))
        }
        ("strings.quote", None, [text]) => {
            let size = text.size();
            let quoted =
                SizeEstimate { min: size.min.saturating_add(2), max: size.max.saturating_mul(2).saturating_add(2) };
            (size.traversal_cost(), Some(quoted))
        }
        ("startsWith" | "endsWith", Some(_), [part]) => (part.size().traversal_cost(), None),
        ("matches", Some(text), [pattern]) => (regex(text.size(), pattern.size()), None),
        ("contains", Some(text), [part]) => {
            (text.size().traversal_cost().saturating_mul(part.size().traversal_cost()), None)
        }
        _ => return None,
    })
}

/// Functions of cel-go's libraries of lists and sets.
fn list_call(name: &str, target: Option<&Node>, arguments: &[Node]) -> Estimate {
    let integer = |node: &Node, otherwise: u64| node.integer.map_or(otherwise, |value| value.max(0) as u64);
    let allocated = |factor: f64, size: SizeEstimate| {
        Some((size.cost(factor).saturating_add(1 + LIST_CREATE_BASE_COST), Some(size)))
    };
    let sort = |list: &Node| {
        let texts = matches!(list.kind.element(), Type::String | Type::Bytes | Type::Dyn);
        let factor = if texts { 2.0 + STRING_TRAVERSAL_COST_FACTOR } else { 2.0 };
        allocated(factor, list.size().multiply(list.size()))
    };
    match (name, target, arguments) {
        ("sets.contains" | "sets.intersects", None, [a, b]) => {
            Some((a.size().multiply(b.size()).cost(1.0).saturating_add(1), None))
        }
        ("sets.equivalent", None, [a, b]) => Some((a.size().multiply(b.size()).cost(2.0).saturating_add(1), None)),
        ("slice", Some(list), [from, to]) => {
            let (from, to) = (integer(from, 0), integer(to, list.size().max));
            allocated(1.0, SizeEstimate::fixed(to.wrapping_sub(from)))
        }
        ("lists.range", None, [count]) => allocated(1.0, SizeEstimate::fixed(integer(count, u64::MAX))),
        ("reverse", Some(list), []) if !matches!(list.kind, Type::String) => allocated(1.0, list.size()),
        ("flatten", Some(list), []) => allocated(1.0, list.size()),
        ("flatten", Some(list), [depth]) => allocated(integer(depth, u64::MAX) as f64, list.size()),
        ("distinct", Some(list), []) => allocated(2.0, list.size().multiply(list.size())),
        ("sort", Some(list), []) => sort(list),
        ("sortByAssociatedKeys", Some(_), [keys]) => sort(keys),
        _ => None,
    }
}

/// Functions of Kubernetes' libraries.
fn kubernetes_call(estimator: &CostEstimator, name: &str, target: Option<&Node>, arguments: &[Node]) -> Estimate {
    Some(match (name, target, arguments) {
        ("check", ..) => (CHECK_COST, None),
        (
            "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery",
            ..,
        ) => (1, None),
        ("fieldSelector" | "labelSelector", _, [selector]) => (self::selector(selector.size()), None),
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => {
            (elements(estimator, target), None)
        }
        ("url" | "jsonpatch.escapeKey", _, [text]) => (text.size().traversal_cost(), Some(text.size())),
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => {
            (text.size().traversal_cost(), Some(text.size()))
        }
        ("replace", Some(text), [old, new, ..]) => {
            (text.size().cost(2.0 * STRING_TRAVERSAL_COST_FACTOR), Some(replaced(text.size(), old.size(), new.size())))
        }
        ("split", Some(text), _) => {
            let most = arguments.get(1).and_then(|limit| limit.integer).map_or(text.size().max, |limit| limit as u64);
            (text.size().cost(2.0 * STRING_TRAVERSAL_COST_FACTOR), Some(SizeEstimate::at_most(most)))
        }
        ("join", Some(list), _) => {
            let mut size = list.size().multiply(estimator.size_of_items(list));
            if let Some(separator) = arguments.first() {
                let between = list.size();
                let between = SizeEstimate { min: between.min.saturating_sub(1), max: between.max.saturating_sub(1) };
                size = size.add(separator.size().multiply(between));
            }
            (size.traversal_cost(), Some(size))
        }
        ("find" | "findAll", Some(text), [pattern, ..]) => {
            (regex(text.size(), pattern.size()), Some(SizeEstimate::at_most(text.size().max)))
        }
        // The address of a network is one of its fields.
        ("ip", Some(_), _) => (1, None),
        ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _, [text, ..]) => {
            (text.size().traversal_cost(), None)
        }
        ("ip.isCanonical", _, [text, ..]) => (text.size().cost(2.0 * STRING_TRAVERSAL_COST_FACTOR), None),
        ("containsIP" | "containsCIDR", _, [other, ..]) => {
            let mut cost = IP_SIZE.add(IP_SIZE).traversal_cost();
            if name == "containsCIDR" {
                cost += IP_SIZE.traversal_cost() + 1;
            }
            let parsed = if other.kind.may_be_string() { other.size().traversal_cost() } else { 0 };
            (cost.saturating_add(parsed), None)
        }
        ("validate", _, [text, ..]) => {
            let pattern = NAMED_FORMAT_REGEX_SIZE_MAX * REGEX_STRING_LENGTH_COST_FACTOR;
            (by_factor(text.size().traversal_cost(), pattern), None)
        }
        _ => return None,
    })
}

/// A selector is parsed into its requirements, each of which is a list in a structure.
fn selector(size: SizeEstimate) -> u64 {
    let requirements = size.cost(SELECTOR_LENGTH_TO_REQUIREMENT_COUNT);
    let each = (LIST_CREATE_BASE_COST + STRUCT_CREATE_BASE_COST) as f64;
    LIST_CREATE_BASE_COST.saturating_add(size.traversal_cost()).saturating_add(by_factor(requirements, each))
}

/// Looking at every item of a list, or at every character of a text.
fn elements(estimator: &CostEstimator, target: &Node) -> u64 {
    let Type::List(element) = &target.kind else { return target.size().traversal_cost() };
    let each = match **element {
        Type::String | Type::Bytes => estimator.size_of_items(target).traversal_cost().saturating_add(1),
        _ => 1,
    };
    target.size().max.saturating_mul(each)
}

/// The size of a text after as many replacements as can be.
fn replaced(text: SizeEstimate, old: SizeEstimate, new: SizeEstimate) -> SizeEstimate {
    let pieces = |text: u64, old: u64| (text as f64 / old as f64).ceil() as u64;
    let (most, kept_most) = match () {
        // Nothing is found before and after every character.
        () if old.min == 0 => (text.max.saturating_add(1), text.max),
        () if new.max <= old.min => (0, text.max),
        () => (pieces(text.max, old.min), 0),
    };
    let (least, kept_least) = match () {
        () if old.max == 0 => (text.min.saturating_add(1), text.min),
        () if old.max <= new.min => (0, text.min),
        () => (pieces(text.min, old.max), 0),
    };
    SizeEstimate { min: least, max: most }.multiply(new).add(SizeEstimate { min: kept_least, max: kept_most })
}
