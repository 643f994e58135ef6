//! Rewrites a parsed template so that everything it builds is weighed while it runs.
//!
//! The engine counts steps, but one step may double a string or nest a list deeper. So each operator, call and literal
//! that makes a value is replaced by, or wrapped in, a filter of ours that checks and counts it.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Spanned, Stmt};

/// Deepest nesting of statements and expressions.
const MAX_NESTING: usize = 200;

/// Checks and counts a value just made.
pub(super) const HELD: &str = "__held";
/// Counts the work of reading a value through.
pub(super) const PAID: &str = "__paid";
pub(super) const ADD: &str = "__add";
pub(super) const MULTIPLY: &str = "__multiply";
pub(super) const CONCAT: &str = "__concat";
pub(super) const REMAINDER: &str = "__remainder";
pub(super) const FLOOR_DIVIDE: &str = "__floor_divide";
pub(super) const SLICE: &str = "__slice";
pub(super) const ITEM: &str = "__item";
pub(super) const METHOD: &str = "__method";

/// Filters that do not read their input through.
const CHEAP_FILTERS: &[&str] = &["length", "count", "first", "last", "default", "d", "safe", "items"];
/// Tests that look at their subject's kind alone.
const CHEAP_TESTS: &[&str] = &[
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "number",
    "integer",
    "float",
    "boolean",
    "true",
    "false",
];

type Rewritten<T> = Result<T, String>;

/// The bounded form of `template`; the error says what cannot be run, and where.
pub(super) fn bounded<'a>(template: &Stmt<'a>) -> Rewritten<Stmt<'a>> {
    Rewriter { nesting: 0, repeats: 0 }.stmt(template)
}

struct Rewriter {
    /// Open statements and expressions.
    nesting: usize,
    /// Open loops and macros.
    repeats: usize,
}

fn again<'a, T, U>(old: &Spanned<T>, new: U) -> Spanned<U>
where
    T: 'a,
{
    Spanned::new(new, old.span())
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

fn filter<'a>(name: &'a str, expr: Expr<'a>, args: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(Spanned::new(ast::Filter { name, expr: Some(expr), args }, span))
}

fn held<'a>(expr: Expr<'a>, span: Span) -> Expr<'a> {
    filter(HELD, expr, vec![], span)
}

fn paid<'a>(expr: Expr<'a>, span: Span) -> Expr<'a> {
    if matches!(expr, Expr::Const(_)) { expr } else { filter(PAID, expr, vec![], span) }
}

fn refused<T>(what: &str, span: Span) -> Rewritten<T> {
    Err(format!("line {}: {what} cannot be used in a chat template", span.start_line))
}

impl Rewriter {
    fn nested<T>(&mut self, span: Span, f: impl FnOnce(&mut Self) -> Rewritten<T>) -> Rewritten<T> {
        if self.nesting == MAX_NESTING {
            return Err(format!("line {}: nested more than {MAX_NESTING} deep", span.start_line));
        }
        self.nesting += 1;
        let result = f(self);
        self.nesting -= 1;
        result
    }

    fn body<'a>(&mut self, stmts: &[Stmt<'a>]) -> Rewritten<Vec<Stmt<'a>>> {
        stmts.iter().map(|s| self.stmt(s)).collect()
    }

    fn repeated<'a>(&mut self, stmts: &[Stmt<'a>]) -> Rewritten<Vec<Stmt<'a>>> {
        self.repeats += 1;
        let result = self.body(stmts);
        self.repeats -= 1;
        result
    }

    fn stmt<'a>(&mut self, stmt: &Stmt<'a>) -> Rewritten<Stmt<'a>> {
        let span = stmt_span(stmt);
        self.nested(span, |this| this.stmt_inside(stmt))
    }

    fn stmt_inside<'a>(&mut self, stmt: &Stmt<'a>) -> Rewritten<Stmt<'a>> {
        Ok(match stmt {
            Stmt::Template(t) => Stmt::Template(again(t, ast::Template { children: self.body(&t.children)? })),
            Stmt::EmitExpr(e) => Stmt::EmitExpr(again(e, ast::EmitExpr { expr: self.expr(&e.expr)? })),
            // Through the formatter, which counts what is written.
            Stmt::EmitRaw(r) => {
                Stmt::EmitExpr(again(r, ast::EmitExpr { expr: constant(Value::from(r.raw), r.span()) }))
            }
            Stmt::ForLoop(f) if f.recursive => return refused("a recursive loop", f.span()),
            Stmt::ForLoop(f) => Stmt::ForLoop(again(f, self.for_loop(f)?)),
            Stmt::IfCond(i) => Stmt::IfCond(again(
                i,
                ast::IfCond {
                    expr: self.expr(&i.expr)?,
                    true_body: self.body(&i.true_body)?,
                    false_body: self.body(&i.false_body)?,
                },
            )),
            Stmt::WithBlock(w) => {
                let assignments = w.assignments.iter().map(|(t, e)| self.assignment(t, e)).collect::<Rewritten<_>>()?;
                Stmt::WithBlock(again(w, ast::WithBlock { assignments, body: self.body(&w.body)? }))
            }
            Stmt::Set(s) => {
                let (target, expr) = self.assignment(&s.target, &s.expr)?;
                Stmt::Set(again(s, ast::Set { target, expr }))
            }
            Stmt::SetBlock(s) => {
                let filter = s.filter.as_ref().map(|f| self.expr(f)).transpose()?;
                let target = self.expr_target(&s.target)?;
                Stmt::SetBlock(again(s, ast::SetBlock { target, filter, body: self.body(&s.body)? }))
            }
            Stmt::FilterBlock(f) => Stmt::FilterBlock(again(
                f,
                ast::FilterBlock { filter: self.expr(&f.filter)?, body: self.body(&f.body)? },
            )),
            Stmt::Macro(m) => Stmt::Macro(self.macro_decl(m)?),
            Stmt::CallBlock(c) => {
                let call = self.plain_call(&c.call)?;
                Stmt::CallBlock(again(c, ast::CallBlock { call, macro_decl: self.macro_decl(&c.macro_decl)? }))
            }
            Stmt::Continue(c) => Stmt::Continue(again(c, ast::Continue)),
            Stmt::Break(b) => Stmt::Break(again(b, ast::Break)),
            Stmt::Do(d) => Stmt::Do(again(d, ast::Do { call: self.plain_call(&d.call)? })),
            Stmt::AutoEscape(s) => return refused("autoescape", s.span()),
            Stmt::Block(s) => return refused("block", s.span()),
            Stmt::Import(s) => return refused("import", s.span()),
            Stmt::FromImport(s) => return refused("from … import", s.span()),
            Stmt::Extends(s) => return refused("extends", s.span()),
            Stmt::Include(s) => return refused("include", s.span()),
        })
    }

    fn for_loop<'a>(&mut self, f: &ast::ForLoop<'a>) -> Rewritten<ast::ForLoop<'a>> {
        Ok(ast::ForLoop {
            target: self.expr_target(&f.target)?,
            iter: self.expr(&f.iter)?,
            filter_expr: f.filter_expr.as_ref().map(|e| self.expr(e)).transpose()?,
            recursive: false,
            body: self.repeated(&f.body)?,
            else_body: self.body(&f.else_body)?,
        })
    }

    /// Macros made over and over would each be kept to the end.
    fn macro_decl<'a>(&mut self, m: &Spanned<ast::Macro<'a>>) -> Rewritten<Spanned<ast::Macro<'a>>> {
        if self.repeats > 0 {
            return refused("a macro or call block inside a loop or macro", m.span());
        }
        let args = m.args.iter().map(|e| self.expr_target(e)).collect::<Rewritten<_>>()?;
        let defaults = m.defaults.iter().map(|e| self.expr(e)).collect::<Rewritten<_>>()?;
        Ok(again(m, ast::Macro { name: m.name, args, defaults, body: self.repeated(&m.body)? }))
    }

    /// A value stored inside a namespace is held: that is how it may come to nest.
    fn assignment<'a>(&mut self, target: &Expr<'a>, value: &Expr<'a>) -> Rewritten<(Expr<'a>, Expr<'a>)> {
        let span = value.span();
        let value = self.expr(value)?;
        let value = if matches!(target, Expr::Var(_)) { value } else { held(value, span) };
        Ok((self.expr_target(target)?, value))
    }

    fn expr_target<'a>(&mut self, target: &Expr<'a>) -> Rewritten<Expr<'a>> {
        self.nested(target.span(), |this| {
            Ok(match target {
                Expr::Var(v) => Expr::Var(again(v, ast::Var { id: v.id })),
                Expr::List(l) => {
                    let items = l.items.iter().map(|e| this.expr_target(e)).collect::<Rewritten<_>>()?;
                    Expr::List(again(l, ast::List { items }))
                }
                Expr::GetAttr(a) => Expr::GetAttr(again(a, ast::GetAttr { expr: this.expr(&a.expr)?, name: a.name })),
                other => return refused("this assignment", other.span()),
            })
        })
    }

    fn args<'a>(&mut self, args: &[CallArg<'a>]) -> Rewritten<Vec<CallArg<'a>>> {
        let one = |arg: &CallArg<'a>| {
            Ok(match arg {
                CallArg::Pos(e) => CallArg::Pos(self.expr(e)?),
                CallArg::Kwarg(name, e) => CallArg::Kwarg(name, self.expr(e)?),
                CallArg::PosSplat(e) => CallArg::PosSplat(self.expr(e)?),
                CallArg::KwargSplat(e) => CallArg::KwargSplat(self.expr(e)?),
            })
        };
        args.iter().map(one).collect()
    }

    fn plain_call<'a>(&mut self, c: &Spanned<ast::Call<'a>>) -> Rewritten<Spanned<ast::Call<'a>>> {
        Ok(again(c, ast::Call { expr: self.expr_target(&c.expr)?, args: self.args(&c.args)? }))
    }

    fn expr<'a>(&mut self, expr: &Expr<'a>) -> Rewritten<Expr<'a>> {
        self.nested(expr.span(), |this| this.expr_inside(expr))
    }

    fn optional<'a>(&mut self, expr: &Option<Expr<'a>>, span: Span) -> Rewritten<Expr<'a>> {
        expr.as_ref().map_or_else(|| Ok(constant(Value::from(()), span)), |e| self.expr(e))
    }

    fn expr_inside<'a>(&mut self, expr: &Expr<'a>) -> Rewritten<Expr<'a>> {
        let span = expr.span();
        Ok(match expr {
            Expr::Var(v) => Expr::Var(again(v, ast::Var { id: v.id })),
            Expr::Const(c) => constant(c.value.clone(), span),
            Expr::Slice(s) => {
                let ends =
                    vec![self.optional(&s.start, span)?, self.optional(&s.stop, span)?, self.optional(&s.step, span)?];
                held(filter(SLICE, self.expr(&s.expr)?, ends, span), span)
            }
            Expr::UnaryOp(u) => {
                let not = matches!(u.op, ast::UnaryOpKind::Not);
                let op = if not { ast::UnaryOpKind::Not } else { ast::UnaryOpKind::Neg };
                Expr::UnaryOp(again(u, ast::UnaryOp { op, expr: self.expr(&u.expr)? }))
            }
            Expr::BinOp(b) => self.binary(b)?,
            Expr::Compare(c) => {
                let op = |o: &ast::CompareOp<'a>| {
                    Ok(ast::CompareOp { op: o.op, expr: paid(self.expr(&o.expr)?, o.expr.span()) })
                };
                let ops = c.ops.iter().map(op).collect::<Rewritten<_>>()?;
                Expr::Compare(again(c, ast::Compare { expr: paid(self.expr(&c.expr)?, c.expr.span()), ops }))
            }
            Expr::IfExpr(i) => Expr::IfExpr(again(
                i,
                ast::IfExpr {
                    test_expr: self.expr(&i.test_expr)?,
                    true_expr: self.expr(&i.true_expr)?,
                    false_expr: i.false_expr.as_ref().map(|e| self.expr(e)).transpose()?,
                },
            )),
            Expr::Filter(f) => self.filter(f)?,
            Expr::Test(t) => {
                let subject = self.expr(&t.expr)?;
                let expr = if CHEAP_TESTS.contains(&t.name) { subject } else { paid(subject, span) };
                Expr::Test(again(t, ast::Test { name: t.name, expr, args: self.args(&t.args)? }))
            }
            Expr::GetAttr(a) => Expr::GetAttr(again(a, ast::GetAttr { expr: self.expr(&a.expr)?, name: a.name })),
            Expr::GetItem(g) => filter(ITEM, self.expr(&g.expr)?, vec![self.expr(&g.subscript_expr)?], span),
            Expr::Call(c) => self.call(c)?,
            Expr::List(l) => {
                let items = l.items.iter().map(|e| self.expr(e)).collect::<Rewritten<_>>()?;
                held(Expr::List(again(l, ast::List { items })), span)
            }
            Expr::Map(m) => {
                let keys = m.keys.iter().map(|e| self.expr(e)).collect::<Rewritten<_>>()?;
                let values = m.values.iter().map(|e| self.expr(e)).collect::<Rewritten<_>>()?;
                held(Expr::Map(again(m, ast::Map { keys, values })), span)
            }
        })
    }

    fn filter<'a>(&mut self, f: &Spanned<ast::Filter<'a>>) -> Rewritten<Expr<'a>> {
        let cheap = CHEAP_FILTERS.contains(&f.name);
        let input = match &f.expr {
            Some(e) => Some(if cheap { self.expr(e)? } else { paid(self.expr(e)?, e.span()) }),
            None => None,
        };
        let args = self.args(&f.args)?;
        Ok(held(Expr::Filter(again(f, ast::Filter { name: f.name, expr: input, args })), f.span()))
    }

    fn binary<'a>(&mut self, b: &Spanned<ast::BinOp<'a>>) -> Rewritten<Expr<'a>> {
        let span = b.span();
        let (left, right) = (self.expr(&b.left)?, self.expr(&b.right)?);
        let ours = match b.op {
            BinOpKind::Add => Some(ADD),
            BinOpKind::Mul => Some(MULTIPLY),
            BinOpKind::Concat => Some(CONCAT),
            BinOpKind::Rem => Some(REMAINDER),
            BinOpKind::FloorDiv => Some(FLOOR_DIVIDE),
            _ => None,
        };
        if let Some(name) = ours {
            return Ok(held(filter(name, left, vec![right], span), span));
        }
        let plain =
            matches!(b.op, BinOpKind::ScAnd | BinOpKind::ScOr | BinOpKind::Sub | BinOpKind::Div | BinOpKind::Pow);
        let (left, right) = if plain { (left, right) } else { (paid(left, span), paid(right, span)) };
        Ok(Expr::BinOp(again(b, ast::BinOp { op: b.op, left, right })))
    }

    fn call<'a>(&mut self, c: &Spanned<ast::Call<'a>>) -> Rewritten<Expr<'a>> {
        let span = c.span();
        let mut args = self.args(&c.args)?;
        if let Expr::GetAttr(method) = &c.expr {
            args.insert(0, CallArg::Pos(constant(Value::from(method.name), span)));
            let object = self.expr(&method.expr)?;
            let call = ast::Filter { name: METHOD, expr: Some(object), args };
            return Ok(held(Expr::Filter(again(c, call)), span));
        }
        Ok(held(Expr::Call(again(c, ast::Call { expr: self.expr(&c.expr)?, args })), span))
    }
}

fn stmt_span(stmt: &Stmt) -> Span {
    match stmt {
        Stmt::Template(s) => s.span(),
        Stmt::EmitExpr(s) => s.span(),
        Stmt::EmitRaw(s) => s.span(),
        Stmt::ForLoop(s) => s.span(),
        Stmt::IfCond(s) => s.span(),
        Stmt::WithBlock(s) => s.span(),
        Stmt::Set(s) => s.span(),
        Stmt::SetBlock(s) => s.span(),
        Stmt::AutoEscape(s) => s.span(),
        Stmt::FilterBlock(s) => s.span(),
        Stmt::Block(s) => s.span(),
        Stmt::Import(s) => s.span(),
        Stmt::FromImport(s) => s.span(),
        Stmt::Extends(s) => s.span(),
        Stmt::Include(s) => s.span(),
        Stmt::Macro(s) => s.span(),
        Stmt::CallBlock(s) => s.span(),
        Stmt::Continue(s) => s.span(),
        Stmt::Break(s) => s.span(),
        Stmt::Do(s) => s.span(),
    }
}
