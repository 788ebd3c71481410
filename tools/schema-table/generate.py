#!/usr/bin/env python3
"""Writes the compact field tables of crates/api/src/schema from Kubernetes' published facts.

    generate.py [--check] [--staging STAGING] OPENAPI_SPEC

OPENAPI_SPEC is the directory with `swagger.json`: what is published, which wins where the two differ.
STAGING is `staging/src/k8s.io` of a Kubernetes source tree: how Go holds each field, and its protobuf number. It is
needed for fields that are new; without it these facts stay as the tables have them (`committed.py`).
With --check nothing is written; the exit code tells whether the tables are what would be.
Only facts are taken (names, numbers, flags, defaults); no text. The format is told in `schema/parse.rs`.
"""
import argparse, io, json, os, re, sys

sys.dont_write_bytecode = True
import committed

ARGUMENTS = argparse.ArgumentParser(usage='generate.py [--check] [--staging STAGING] OPENAPI_SPEC')
ARGUMENTS.add_argument('--check', action='store_true')
ARGUMENTS.add_argument('--staging')
ARGUMENTS.add_argument('spec')
ARGUMENTS = ARGUMENTS.parse_args()
STAGING, SPEC = ARGUMENTS.staging, ARGUMENTS.spec
TABLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../crates/api/src/schema')

META = 'apimachinery/pkg/apis/meta/v1'
APIEXT = 'apiextensions-apiserver/pkg/apis/apiextensions/v1'
APIREG = 'kube-aggregator/pkg/apis/apiregistration/v1'
SPECIAL = {
    (META, 'Time'): 't', (META, 'MicroTime'): 'u', (META, 'Duration'): 'd', (META, 'FieldsV1'): 'f',
    ('apimachinery/pkg/api/resource', 'Quantity'): 'q',
    ('apimachinery/pkg/util/intstr', 'IntOrString'): 'x',
    ('apimachinery/pkg/runtime', 'RawExtension'): 'a',
    ('apimachinery/pkg/runtime', 'Object'): 'a',
    ('apimachinery/pkg/types', 'UID'): 's',
    (APIEXT, 'JSON'): 'a',
}
SCALAR = {'string': 's', 'bool': 'b', 'int32': 'i', 'int': 'l', 'int64': 'l', 'uint32': 'l', 'uint64': 'l',
          'float64': 'n', 'float32': 'n', 'byte': 'byte', 'uint8': 'byte', 'interface{}': 'a'}
OR = {'JSONSchemaPropsOrArray': 'oa', 'JSONSchemaPropsOrBool': 'ob', 'JSONSchemaPropsOrStringArray': 'os'}
WRAPPED = {'ExtraValue', 'Verbs'}
# Kinds of the meta package that belong to meta.k8s.io rather than to every group.
META_GROUP = {'Table', 'TableOptions', 'PartialObjectMetadata', 'PartialObjectMetadataList'}


class Package:
    def __init__(self, path):
        self.path, self.structs, self.named, self.comments = path, {}, {}, {}
        self.consts = {}
        directory = os.path.join(STAGING, path)
        for name in sorted(os.listdir(directory)):
            if name.endswith('.go') and not name.endswith('_test.go') and not name.startswith(('generated', 'zz_')):
                self.read(open(os.path.join(directory, name)).read())

    def read(self, text):
        imports = {}
        for alias, path in re.findall(r'^\s*(?:import\s+)?(\w+)?\s*"k8s\.io/([^"]+)"\s*$', text, re.M):
            imports[alias or path.rsplit('/', 1)[1]] = path
        for name, value in re.findall(r'^\s*(?:const\s+)?(\w+)(?:\s+\w+)?\s*=\s*("[^"]*")', text, re.M):
            self.consts[name] = value
        comment, lines, i = [], text.split('\n'), 0
        while i < len(lines):
            line = lines[i]
            if line.startswith('//'):
                comment.append(line[2:].strip())
            elif m := re.match(r'type (\w+) struct ?\{(\})?', line):
                body = []
                while not m.group(2) and not lines[i + 1].startswith('}'):
                    i += 1
                    body.append(lines[i])
                self.structs[m.group(1)] = (body, imports, self.path)
                self.comments[m.group(1)] = comment
                comment = []
            elif m := re.match(r'type (\w+) (=\s*)?([\w.\[\]*{}]+)\s*(//.*)?$', line):
                self.named[m.group(1)] = (m.group(3), imports)
                self.comments[m.group(1)] = comment
                comment = []
            elif line.strip():
                comment = []
            i += 1


PACKAGES = {}


def package(path):
    if path not in PACKAGES:
        PACKAGES[path] = Package(path)
        copy_renamed(PACKAGES[path])
    return PACKAGES[path]


def copy_renamed(pkg):
    """`type A b.A` makes a type of its own with the other's fields."""
    for name, (target, imports) in list(pkg.named.items()):
        if '.' in target and target[0].isalpha() and (pkg.path, name) not in SPECIAL:
            alias, other = target.split('.')
            origin = imports.get(alias)
            if origin and os.path.isdir(os.path.join(STAGING, origin)) and other in package(origin).structs and (origin, other) not in SPECIAL:
                pkg.structs[name] = package(origin).structs[other]
                del pkg.named[name]


def tags(comment):
    found = {}
    for line in comment:
        if m := re.match(r'\+([\w:.()]+)(?:=(.*))?$', line.strip()):
            found.setdefault(m.group(1), []).append((m.group(2) or '').strip())
    return found


def resolve(text, path, imports):
    """A Go type -> (kind, ...) with kind in scalar, struct, list, map, ptr; plus a set of notes."""
    if text.startswith('*'):
        return ('ptr', resolve(text[1:], path, imports))
    if text == '[]byte':
        return ('scalar', 'y')
    if text.startswith('[]'):
        return ('list', resolve(text[2:], path, imports))
    if text.startswith('map['):
        return ('map', resolve(text[text.index(']') + 1:], path, imports))
    if text in SCALAR:
        return ('scalar', SCALAR[text])
    if '.' in text:
        alias, text = text.split('.')
        path = imports.get(alias, 'unknown/' + alias)
    if (path, text) in SPECIAL:
        return ('scalar', SPECIAL[(path, text)])
    if path == APIEXT and text in OR:
        return ('or', OR[text], ('struct', path, 'JSONSchemaProps'))
    pkg = package(path)
    if text in pkg.structs:
        return ('struct', path, text)
    if text in pkg.named:
        below = resolve(pkg.named[text][0], path, pkg.named[text][1])
        return ('wrapped', below) if text in WRAPPED else below
    raise KeyError(f'{path} {text}')


class Field:
    pass


def fields(path, name, inside=()):
    body, imports, path = package(path).structs[name]
    out, comment = [], []
    for line in body:
        stripped = line.strip()
        if stripped.startswith('//'):
            comment.append(stripped[2:].strip())
            continue
        m = re.match(r'(?:(\w+)\s+)?([\w.\[\]*{}]+)\s*(?:`(.*)`)?\s*(//.*)?$', stripped)
        if not m or not stripped:
            comment = []
            continue
        go_name, go_type, tag = m.group(1), m.group(2), m.group(3) or ''
        known = dict(re.findall(r'(\w+):"([^"]*)"', tag))
        js = known.get('json', '').split(',')
        proto = int(known['protobuf'].split(',')[1]) if 'protobuf' in known and known['protobuf'] != '-' else 0
        if go_name is None and (js[0] == '' or 'inline' in js):
            target = resolve(go_type, path, imports)
            assert target[0] == 'struct', (path, name, go_type)
            below = fields(target[1], target[2], inside + ((proto,) if proto else ()))
            if target[2] == 'TypeMeta':
                # The envelope carries it in protobuf; its presence makes a kind.
                for f in below:
                    f.proto = 0
            out += below
            comment = []
            continue
        if js[0] in ('', '-'):
            comment = []
            continue
        f = Field()
        f.name, f.proto, f.inside = js[0], proto, inside
        f.omit, f.omit_zero = 'omitempty' in js, 'omitzero' in js
        f.type, f.pointer, f.wrapped, f.or_ = resolve(go_type, path, imports), False, False, ''
        if f.type[0] == 'ptr':
            f.pointer, f.type = True, f.type[1]
        f.tags = tags(comment)
        f.patch = known.get('patchStrategy', '').split(',') if known.get('patchStrategy') else []
        f.merge_key = known.get('patchMergeKey')
        f.required = not f.omit and not f.omit_zero and 'optional' not in f.tags
        f.default = default_of(f.tags, path)
        f.list_type = f.tags.get('listType', [None])[0]
        f.map_keys = f.tags.get('listMapKey', [])
        f.map_type = (f.tags.get('mapType') or f.tags.get('structType') or [None])[0]
        out.append(f)
        comment = []
    return out


def alias_of(path):
    parts = path.split('/')
    return parts[-2] + '.' + parts[-1] if path != META else 'meta'


def render(node, f, home, top=True):
    kind = node[0]
    if kind == 'scalar':
        return node[1]
    if kind == 'ptr':
        return render(node[1], f, home, top)
    if kind == 'raw':
        return node[1] + ('~' if top and f.map_type == 'granular' else '')
    if kind == 'or':
        f.or_ = node[1]
        return render(node[2], f, home, top)
    if kind == 'wrapped':
        f.wrapped = True
        return render(node[1], f, home, top)
    if kind == 'struct':
        prefix = '' if node[1] == home else alias_of(node[1]) + ':'
        granular = '~' if top and f.map_type == 'granular' else ''
        return prefix + node[2] + granular
    if kind == 'list':
        list_type = ''
        if top:
            list_type = {'set': 'set', 'map': ','.join(f.map_keys), 'atomic': '!', None: ''}[f.list_type]
        return f'[{list_type}]' + render(node[1], f, home, False)
    if kind == 'map':
        return '{' + ({'atomic': '!', 'granular': '~'}.get(f.map_type, '') if top else '') + '}' + render(node[1], f, home, False)
    raise ValueError(node)


def openapi_name(path):
    if path.startswith('api/'):
        return 'io.k8s.api.' + path[4:].replace('/', '.')
    return 'io.k8s.' + path.replace('/', '.')


def default_of(found, path):
    text = found.get('default', [None])[0]
    if text is None:
        return None
    if m := re.match(r'ref\(([\w./]+)\)', text):
        text = package(path).consts[m.group(1).rsplit('.', 1)[-1]]
    return json.dumps(json.loads(text), separators=(',', ':'))


SWAGGER = json.load(open(os.path.join(SPEC, 'swagger.json')))['definitions']


def published(type_name, all_fields, otherwise_atomic):
    """Overlays what upstream publishes about a type on what is known of it; says whether it is atomic."""
    spec = SWAGGER.get(type_name)
    if spec is None or type_name.rsplit('.', 1)[1] in OR:
        return otherwise_atomic
    known, said = {f.name for f in all_fields}, set(spec.get('properties', {}))
    PROBLEMS.extend(f'{type_name}.{name} is published: its wire facts need --staging' for name in sorted(said - known))
    PROBLEMS.extend(f'{type_name}.{name} is not published any more' for name in sorted(known - said))
    for f in all_fields:
        p = spec['properties'].get(f.name, {})
        f.required = f.name in spec.get('required', [])
        f.list_type, f.map_keys = p.get('x-kubernetes-list-type'), p.get('x-kubernetes-list-map-keys', [])
        f.map_type = p.get('x-kubernetes-map-type')
        f.patch = [s for s in p.get('x-kubernetes-patch-strategy', '').split(',') if s]
        f.merge_key = p.get('x-kubernetes-patch-merge-key')
    return spec.get('x-kubernetes-map-type') == 'atomic'


PROBLEMS = []


def field_line(f, home):
    node = render(f.type, f, home)
    line = f' {f.name} {node} ' + ''.join(f'{n}.' for n in f.inside) + str(f.proto)
    if f.required: line += ' !'
    if f.pointer: line += ' *'
    if f.omit_zero: line += ' z'
    elif f.omit: line += ' ?'
    if f.wrapped: line += ' w'
    if node == 'y' and f.list_type == 'atomic': line += ' A'
    if f.or_: line += ' ' + f.or_
    if 'retainKeys' in f.patch: line += ' r'
    if 'merge' in f.patch: line += ' m'
    if 'replace' in f.patch: line += ' R'
    if f.merge_key: line += f' m={f.merge_key}'
    if f.default is not None: line += f' ={f.default}'
    return line


def from_sources(paths):
    """The sections of one table, as Go's sources and the published files have them."""
    for path in paths:
        pkg = package(path)
        group = '' if path == META else pkg.consts.get('GroupName', '""').strip('"')
        types = []
        for name in sorted(pkg.structs):
            if (path, name) in SPECIAL or (path == APIEXT and name in OR):
                continue
            if path == META and name in ('TypeMeta', 'Timestamp', 'InternalEvent'):
                continue
            try:
                all_fields = fields(path, name)
            except KeyError as e:
                print('skipped', path, name, e)
                continue
            if not all_fields and openapi_name(path) + '.' + name not in SWAGGER:
                continue
            is_kind = any(f.name == 'kind' and not f.proto and not f.inside for f in all_fields)
            is_kind = is_kind or (path, name) == (META, 'WatchEvent')
            flags = ['k' + ('meta.k8s.io/v1' if path == META and name in META_GROUP else '')] if is_kind else []
            if 'atomic' in tags(pkg.comments[name]).get('structType', []):
                flags.append('!')
            types.append((name, flags, all_fields))
        yield f'@{alias_of(path)} {openapi_name(path)} {group}/{path.rsplit("/", 1)[1]}', path, types


def from_table(table):
    for header, types in committed.read(os.path.join(TABLES, table)):
        prefix = header.split(' ')[1] + '.'
        have = {name for name, _, _ in types} | set(OR)
        for name, spec in sorted(SWAGGER.items()):
            if name.startswith(prefix) and '.' not in name[len(prefix):] and name[len(prefix):] not in have and 'properties' in spec:
                PROBLEMS.append(f'{name} is published: its wire facts need --staging')
        yield header, None, types


def table_of(sections):
    o = io.StringIO()
    o.write('# Generated by tools/schema-table/generate.py: do not edit.\n')
    for header, home, types in sections:
        o.write(header + '\n')
        for name, flags, all_fields in types:
            atomic = published(f'{header.split(" ")[1]}.{name}', all_fields, '!' in flags)
            flags = [flag for flag in flags if flag != '!'] + (['!'] if atomic else [])
            o.write(' '.join([name] + flags) + '\n')
            for f in sorted(all_fields, key=lambda f: f.name):
                o.write(field_line(f, home) + '\n')
    return o.getvalue()


def tables():
    if STAGING is None:
        return {name: from_table(name) for name in ('served.table', 'unserved.table')}
    found = []
    for root, _, names in os.walk(os.path.join(STAGING, 'api')):
        if 'generated.proto' in names and 'types.go' in names:
            found.append(os.path.relpath(root, STAGING))
    found.sort()
    served = [p for p in found if p.endswith('/v1') or p in ('api/autoscaling/v2', 'api/apidiscovery/v2')]
    return {'served.table': from_sources([META] + served + [APIEXT, APIREG]),
            'unserved.table': from_sources([p for p in found if p not in served])}


for name, sections in tables().items():
    path, text = os.path.join(TABLES, name), table_of(sections)
    if ARGUMENTS.check:
        old = open(path).read().split('\n')
        PROBLEMS.extend(f'{name}:{i + 1}: {a!r} would be {b!r}' for i, (a, b) in enumerate(zip(old, text.split('\n'))) if a != b)
        if len(old) != len(text.split('\n')):
            PROBLEMS.append(f'{name} has {len(old)} lines and would have {len(text.split(chr(10)))}')
    elif not PROBLEMS:
        open(path, 'w').write(text)
if PROBLEMS:
    sys.exit('\n'.join(PROBLEMS))
