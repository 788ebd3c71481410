#!/usr/bin/env python3
"""Writes the compact field tables of crates/api/src/schema from Kubernetes' published facts.

    generate.py STAGING OPENAPI_SPEC OUTPUT_DIR

STAGING is `staging/src/k8s.io` of a Kubernetes source tree: how Go holds each field, and its protobuf number.
OPENAPI_SPEC is the directory with `swagger.json`: what is published, which wins where the two differ.
Only facts are taken (names, numbers, flags, defaults); no text. The format is told in `schema/parse.rs`.
"""
import json, os, re, sys

STAGING, SPEC, OUT = sys.argv[1:4]

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
        f.path = path
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


def default_of(f):
    text = f.tags.get('default', [None])[0]
    if text is None:
        return None
    if m := re.match(r'ref\(([\w./]+)\)', text):
        text = package(f.path).consts[m.group(1).rsplit('.', 1)[-1]]
    return json.dumps(json.loads(text), separators=(',', ':'))


SWAGGER = json.load(open(os.path.join(SPEC, 'swagger.json')))['definitions']


def published(path, name, all_fields):
    """Overlay what upstream publishes on what the sources say."""
    spec = SWAGGER.get(f'{openapi_name(path)}.{name}')
    for f in all_fields:
        f.list_type = f.tags.get('listType', [None])[0]
        f.map_keys = f.tags.get('listMapKey', [])
        f.map_type = (f.tags.get('mapType') or f.tags.get('structType') or [None])[0]
        if spec is not None and name not in OR:
            p = spec['properties'][f.name]
            f.required = f.name in spec.get('required', [])
            f.list_type, f.map_keys = p.get('x-kubernetes-list-type'), p.get('x-kubernetes-list-map-keys', [])
            f.map_type = p.get('x-kubernetes-map-type')
            f.patch = [s for s in p.get('x-kubernetes-patch-strategy', '').split(',') if s]
            f.merge_key = p.get('x-kubernetes-patch-merge-key')
    atomic = spec.get('x-kubernetes-map-type') == 'atomic' if spec is not None else \
        'atomic' in tags(package(path).comments[name]).get('structType', [])
    return atomic


def write(paths, out):
    with open(out, 'w') as o:
        o.write('# Generated by tools/schema-table/generate.py: do not edit.\n')
        for path in paths:
            pkg = package(path)
            group = pkg.consts.get('GroupName', '""').strip('"')
            version = path.rsplit('/', 1)[1]
            group = '' if path == META else group
            o.write(f'@{alias_of(path)} {openapi_name(path)} {group}/{version}\n')
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
                atomic = published(path, name, all_fields)
                is_kind = any(f.name == 'kind' and not f.proto and not f.inside for f in all_fields)
                is_kind = is_kind or (path, name) == (META, 'WatchEvent')
                flags = (' k' + ('meta.k8s.io/v1' if path == META and name in META_GROUP else '') if is_kind else '')
                flags += ' !' if atomic else ''
                o.write(f'{name}{flags}\n')
                for f in sorted(all_fields, key=lambda f: f.name):
                    node = render(f.type, f, path)
                    inside = ''.join(f'{n}.' for n in f.inside)
                    line = f' {f.name} {node} {inside}{f.proto}'
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
                    if (d := default_of(f)) is not None: line += f' ={d}'
                    o.write(line + '\n')


found = []
for root, _, names in os.walk(os.path.join(STAGING, 'api')):
    if 'generated.proto' in names and 'types.go' in names:
        found.append(os.path.relpath(root, STAGING))
found.sort()
served = [p for p in found if p.endswith('/v1') or p in ('api/autoscaling/v2', 'api/apidiscovery/v2')]
unserved = [p for p in found if p not in served]
write([META] + served + [APIEXT, APIREG], os.path.join(OUT, 'served.table'))
write(unserved, os.path.join(OUT, 'unserved.table'))
