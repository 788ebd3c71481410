//! Walks an expression and adds up what it costs at most, as cel-go's checker does.
//! Fed with the declared types of what the expression names; function costs come from `calls`.
//! Evaluates nothing. Definitions are refused by this figure, so it is upstream's figure, also where that one is odd: a
//! part that no path leads to is taken for as large as the root.

use std::sync::Arc;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{
    calls,
    decl_type::DeclType,
    size::{EntrySize, LIST_CREATE_BASE_COST, MAP_CREATE_BASE_COST, STRUCT_CREATE_BASE_COST, SizeEstimate},
};
use crate::{functions::LIBRARIES, types::Type};

/// The name that macros give to what they collect in.
const ACCUMULATOR: &str = "@result";

/// Where a value is found in what the expression names.
#[derive(Clone, Default)]
pub enum Path {
    #[default]
    Empty,
    /// `None` where the declared types have nothing.
    At(Option<Arc<DeclType>>),
}

/// A part of the expression that has been looked at.
#[derive(Clone)]
pub struct Node {
    pub cost: u64,
    pub kind: Type,
    pub path: Path,
    pub size: Option<SizeEstimate>,
    pub entry: Option<EntrySize>,
    /// Of a whole number that is written out.
    pub integer: Option<i64>,
}

impl Node {
    fn new(cost: u64, kind: Type) -> Self {
        Self { cost, kind, path: Path::Empty, size: None, entry: None, integer: None }
    }

    pub fn size(&self) -> SizeEstimate {
        self.size.unwrap_or(SizeEstimate::UNKNOWN)
    }
}

#[derive(Clone)]
struct Variable {
    name: String,
    kind: Type,
    path: Path,
    size: Option<SizeEstimate>,
    entry: Option<EntrySize>,
}

pub struct CostEstimator {
    root: Arc<DeclType>,
    /// What the expression names from outside.
    declared: Vec<(String, Type)>,
    locals: Vec<Variable>,
}

impl CostEstimator {
    pub fn new(root: Arc<DeclType>, declared: Vec<(String, Type)>) -> Self {
        Self { root, declared, locals: Vec::new() }
    }

    pub fn estimate(&mut self, expression: &IdedExpr) -> u64 {
        self.visit(&expression.expr).cost
    }

    fn step(&self, path: &Path, step: impl Fn(&DeclType) -> Option<Arc<DeclType>>) -> Path {
        match path {
            Path::Empty => Path::At(Some(self.root.clone())),
            Path::At(found) => Path::At(found.as_deref().and_then(step)),
        }
    }

    pub fn items(&self, path: &Path) -> Path {
        self.step(path, |declared| declared.element().cloned())
    }

    fn declared_size(path: &Path) -> Option<SizeEstimate> {
        match path {
            Path::At(Some(declared)) => Some(SizeEstimate::at_most(declared.max_elements)),
            _ => None,
        }
    }

    pub fn size_of_items(&self, list: &Node) -> SizeEstimate {
        match &list.path {
            Path::Empty => SizeEstimate::UNKNOWN,
            path => Self::declared_size(&self.items(path)).unwrap_or(SizeEstimate::UNKNOWN),
        }
    }

    /// By where it is found, else by its type.
    fn sized(mut node: Node) -> Node {
        let scalar = node.kind.is_scalar().then_some(SizeEstimate::fixed(1));
        node.size = node.size.or(Self::declared_size(&node.path)).or(scalar);
        node
    }

    fn visit(&mut self, expression: &Expr) -> Node {
        match expression {
            Expr::Literal(literal) => Self::literal(literal),
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => {
                let operand = self.visit(&select.operand.expr);
                // Asking whether a field is there is free.
                if select.test {
                    return Self::sized(Node::new(operand.cost, Type::Bool));
                }
                let own = u64::from(matches!(operand.kind, Type::Map(_) | Type::Declared(_) | Type::Record(..)));
                let mut node = Node::new(operand.cost.saturating_add(own), operand.kind.field(&select.field));
                node.path = self.step(&operand.path, |declared| declared.field(&select.field).cloned());
                Self::sized(node)
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) if is_bind(comprehension) => self.bind(comprehension),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let items: Vec<Node> = list.elements.iter().map(|e| self.visit(&e.expr)).collect();
                let cost = sum(items.iter()).saturating_add(LIST_CREATE_BASE_COST);
                let kind = items.iter().map(|item| item.kind.clone()).reduce(Type::join).unwrap_or(Type::Dyn);
                let mut node = Node::new(cost, Type::List(Box::new(kind)));
                node.size = Some(SizeEstimate::fixed(items.len() as u64));
                node.entry = Some(EntrySize { is_list: true, key: SizeEstimate::fixed(1), value: range(&items) });
                node
            }
            Expr::Map(map) => {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        keys.push(self.visit(&entry.key.expr));
                        values.push(self.visit(&entry.value.expr));
                    }
                }
                let cost = sum(keys.iter().chain(&values)).saturating_add(MAP_CREATE_BASE_COST);
                let kind = values.iter().map(|item| item.kind.clone()).reduce(Type::join).unwrap_or(Type::Dyn);
                let mut node = Node::new(cost, Type::Map(Box::new(kind)));
                node.size = Some(SizeEstimate::fixed(values.len() as u64));
                node.entry = Some(EntrySize { is_list: false, key: range(&keys), value: range(&values) });
                node
            }
            Expr::Struct(made) => {
                let mut cost = STRUCT_CREATE_BASE_COST;
                for entry in &made.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        cost = cost.saturating_add(self.visit(&field.value.expr).cost);
                    }
                }
                Node::new(cost, Type::Dyn)
            }
            Expr::Unspecified => Node::new(0, Type::Dyn),
        }
    }

    fn literal(literal: &LiteralValue) -> Node {
        let mut node = Node::new(0, Type::from_literal(literal));
        node.size = Some(SizeEstimate::fixed(match literal {
            LiteralValue::String(text) => text.inner().chars().count() as u64,
            LiteralValue::Bytes(bytes) => bytes.inner().len() as u64,
            _ => 1,
        }));
        if let LiteralValue::Int(value) = literal {
            node.integer = Some(*value.inner());
        }
        node
    }

    fn name(&self, name: &str) -> Node {
        if let Some(local) = self.locals.iter().rev().find(|local| local.name == name) {
            let mut node = Node::new(1, local.kind.clone());
            (node.path, node.entry) = (local.path.clone(), local.entry);
            let mut node = Self::sized(node);
            node.size = node.size.or(local.size);
            return node;
        }
        let known = self.declared.iter().find(|(known, _)| known == name);
        let mut node = Node::new(1, known.map_or(Type::TypeType, |(_, kind)| kind.clone()));
        node.path = Path::At(Some(self.root.clone()));
        Self::sized(node)
    }

    fn is_local(&self, name: &str) -> bool {
        self.locals.iter().any(|local| local.name == name) || self.declared.iter().any(|(known, _)| known == name)
    }

    fn call(&mut self, call: &CallExpr) -> Node {
        // `sets.contains(…)` is a function with a name of two words, not one of something called `sets`.
        let library = call.target.as_ref().and_then(|target| match &target.expr {
            Expr::Ident(name) if LIBRARIES.contains(&name.as_str()) && !self.is_local(name) => Some(name.clone()),
            _ => None,
        });
        let name = library.as_ref().map_or(call.func_name.clone(), |library| format!("{library}.{}", call.func_name));
        let arguments: Vec<Node> = call.args.iter().map(|argument| self.visit(&argument.expr)).collect();
        if let (operators::OPT_SELECT, [operand, _], [_, field]) =
            (name.as_str(), arguments.as_slice(), call.args.as_slice())
        {
            let field = match &field.expr {
                Expr::Literal(LiteralValue::String(text)) => text.inner(),
                _ => "",
            };
            return Self::sized(Node::new(
                sum(arguments.iter()).saturating_add(1),
                operand.kind.field(field).optional(),
            ));
        }
        if let ("dyn", [value]) = (name.as_str(), arguments.as_slice()) {
            let mut node = Node::new(value.cost.saturating_add(1), Type::Dyn);
            (node.size, node.entry) = (value.size, value.entry);
            return node;
        }
        let target = call.target.as_ref().filter(|_| library.is_none()).map(|target| self.visit(&target.expr));
        let found = calls::estimate(self, &name, target.as_ref(), &arguments);
        let cost = target.as_ref().map_or(0, |target| target.cost).saturating_add(found.cost);
        let mut node = Node::new(cost, found.kind);
        (node.size, node.entry) = (found.size, found.entry);
        if let (operators::INDEX, [of, ..]) = (name.as_str(), arguments.as_slice())
            && !matches!(of.kind, Type::Optional(_))
        {
            node.path = self.items(&of.path);
            node.size = of.entry.map(|entry| entry.value);
        }
        Self::sized(node)
    }

    fn bind(&mut self, bind: &ComprehensionExpr) -> Node {
        let range = self.visit(&bind.iter_range.expr);
        let value = self.visit(&bind.accu_init.expr);
        let cost = range.cost.saturating_add(value.cost);
        self.locals.push(variable(&bind.accu_var, value));
        let result = self.visit(&bind.result.expr);
        self.locals.pop();
        let mut node = Node::new(cost.saturating_add(result.cost), result.kind);
        (node.size, node.entry) = (result.size, result.entry);
        node
    }

    fn comprehension(&mut self, c: &ComprehensionExpr) -> Node {
        let range = self.visit(&c.iter_range.expr);
        let start = self.visit(&c.accu_init.expr);
        let mut cost = range.cost.saturating_add(start.cost);
        let outside = self.locals.len();
        self.locals.push(variable(&c.accu_var, start.clone()));
        self.loop_variables(c, &range);
        let condition = self.visit(&c.loop_cond.expr);
        let step = self.visit(&c.loop_step.expr);
        self.locals.truncate(outside);
        let mut collected = variable(&c.accu_var, start.clone());
        collected.kind = start.kind.clone().join(step.kind.clone());
        self.locals.push(collected);
        let result = self.visit(&c.result.expr);
        self.locals.truncate(outside);
        cost = cost.saturating_add(result.cost);
        let times = range.size();
        let around = times.max.saturating_mul(step.cost.saturating_add(condition.cost));
        let mut node = Node::new(cost.saturating_add(around), result.kind);
        match &c.accu_init.expr {
            Expr::Literal(_) => node.size = start.size,
            Expr::List(_) | Expr::Map(_) => (node.size, node.entry) = (Some(times), step.entry),
            _ => {}
        }
        Self::sized(node)
    }

    fn loop_variables(&mut self, c: &ComprehensionExpr, range: &Node) {
        let is_list = range.entry.map_or(matches!(range.kind, Type::List(_)), |entry| entry.is_list);
        let key_path = self.step(&range.path, |declared| declared.key());
        let value_path = self.items(&range.path);
        let key_size = range.entry.map(|entry| entry.key);
        let value_size = range.entry.map(|entry| entry.value);
        let local = |name: &String, kind, path, size| Variable { name: name.clone(), kind, path, size, entry: None };
        let Some(second) = &c.iter_var2 else {
            let (path, size) = if is_list { (value_path, value_size) } else { (key_path, key_size) };
            self.locals.push(local(&c.iter_var, range.kind.item(), path, size));
            return;
        };
        // Nothing is declared for the numbers of a list's items.
        let (kind, path) = if is_list { (Type::Int, Path::At(None)) } else { (Type::String, key_path) };
        self.locals.push(local(&c.iter_var, kind, path, key_size));
        self.locals.push(local(second, range.kind.element(), value_path, value_size));
    }
}

/// A loop that never runs gives a name to a value.
fn is_bind(c: &ComprehensionExpr) -> bool {
    let empty = matches!(&c.iter_range.expr, Expr::List(list) if list.elements.is_empty());
    let never = matches!(&c.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(truth)) if !*truth.inner());
    empty && never && c.accu_var != ACCUMULATOR
}

fn variable(name: &str, value: Node) -> Variable {
    Variable { name: name.into(), kind: value.kind, path: value.path, size: value.size, entry: value.entry }
}

fn sum<'a>(nodes: impl Iterator<Item = &'a Node>) -> u64 {
    nodes.fold(0, |sum, node| sum.saturating_add(node.cost))
}

/// The sizes that all of these have.
fn range(nodes: &[Node]) -> SizeEstimate {
    nodes.iter().map(Node::size).reduce(SizeEstimate::union).unwrap_or(SizeEstimate::fixed(0))
}
