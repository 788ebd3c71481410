#!/usr/bin/env python3
"""Writes crates/api/src/schema/internal_types.table: how Go prints the types that upstream validates.

    internal_types.py [--check] KUBERNETES

KUBERNETES is a Kubernetes source tree. Errors show values of `pkg/apis/*/types.go`, which mostly have no JSON names, as
Go's JSON writer does: every field under its Go name, nil as null. Only facts are taken (names, order, types).
The format is told in `schema/go_form.rs`.
"""
import argparse, os, re, sys

ARGUMENTS = argparse.ArgumentParser(usage='internal_types.py [--check] KUBERNETES')
ARGUMENTS.add_argument('--check', action='store_true')
ARGUMENTS.add_argument('kubernetes')
ARGUMENTS = ARGUMENTS.parse_args()
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../crates/api/src/schema/internal_types.table')

STAGING = 'staging/src/k8s.io/'
META = STAGING + 'apimachinery/pkg/apis/meta/v1'
CORE = 'pkg/apis/core'
# The packages whose kinds are validated, by group.
GROUPS = {
    '': CORE, 'apps': 'pkg/apis/apps', 'batch': 'pkg/apis/batch', 'autoscaling': 'pkg/apis/autoscaling',
    'policy': 'pkg/apis/policy', 'networking.k8s.io': 'pkg/apis/networking', 'storage.k8s.io': 'pkg/apis/storage',
    'rbac.authorization.k8s.io': 'pkg/apis/rbac', 'resource.k8s.io': 'pkg/apis/resource',
    'certificates.k8s.io': 'pkg/apis/certificates', 'discovery.k8s.io': 'pkg/apis/discovery',
    'flowcontrol.apiserver.k8s.io': 'pkg/apis/flowcontrol', 'node.k8s.io': 'pkg/apis/node',
    'admissionregistration.k8s.io': 'pkg/apis/admissionregistration', 'scheduling.k8s.io': 'pkg/apis/scheduling',
    'coordination.k8s.io': 'pkg/apis/coordination', 'authorization.k8s.io': 'pkg/apis/authorization',
    'authentication.k8s.io': 'pkg/apis/authentication',
}
SPECIAL = {'Time': 't', 'MicroTime': 't', 'Duration': 's', 'Quantity': 'q', 'IntOrString': 'x', 'RawExtension': 'a',
           'Object': 'a', 'FieldsV1': 'a', 'UID': 's', 'ResourceList': '{}q'}
SCALAR = {'string': 's', 'bool': 'b', 'byte': 'y', 'uint8': 'y', 'interface{}': 'a', **{
    name: 'n' for name in ('int', 'int32', 'int64', 'uint32', 'uint64', 'uint16', 'uint', 'float64', 'float32')}}


class Package:
    def __init__(self, path):
        self.structs, self.named, self.imports = {}, {}, {}
        directory = os.path.join(ARGUMENTS.kubernetes, path)
        for name in sorted(os.listdir(directory)):
            if name.endswith('.go') and not name.endswith('_test.go') and not name.startswith(('generated', 'zz_')):
                self.read(open(os.path.join(directory, name)).read())

    def read(self, text):
        text = re.sub(r'/\*.*?\*/', '', text, flags=re.S)
        for alias, path in re.findall(r'^\s*(?:import\s+)?(\w+)?\s*"(k8s\.io/[^"]+)"\s*$', text, re.M):
            path = path.removeprefix('k8s.io/').removeprefix('kubernetes/')
            path = path if path.startswith('pkg/') else STAGING + path
            self.imports[alias or path.rsplit('/', 1)[1]] = path
        for name, body in re.findall(r'^type (\w+) struct \{\n(.*?)^\}', text, re.M | re.S):
            self.structs[name] = body
        for name, other in re.findall(r'^type (\w+) =? ?([\w\[\]\*\.]+)\s*$', text, re.M):
            self.named[name] = other
        # Inside `type ( … )`.
        for block in re.findall(r'^type \(\n(.*?)^\)', text, re.M | re.S):
            for name, other in re.findall(r'^\s+(\w+) ([\w\[\]\*\.]+)\s*$', block, re.M):
                self.named[name] = other


PACKAGES = {}


def package(path):
    if path not in PACKAGES:
        PACKAGES[path] = Package(path)
    return PACKAGES[path]


TYPES, QUEUE = {}, []


def code(path, text):
    for prefix, wrapped in (('*', '*'), ('[]', '[]')):
        if text.startswith(prefix):
            inner = code(path, text[len(prefix):])
            return 'y' if wrapped == '[]' and inner == 'y' else wrapped + inner
    found = re.match(r'map\[[\w\.]+\](.*)', text)
    if found:
        return '{}' + code(path, found[1])
    if text in SCALAR:
        return SCALAR[text]
    place, name = path, text
    if '.' in text:
        alias, name = text.split('.')
        place = package(path).imports.get(alias, '')
        if name in SPECIAL or not place:
            return SPECIAL.get(name, 's')
    if name in SPECIAL:
        return SPECIAL[name]
    try:
        of = package(place)
    except FileNotFoundError:
        return 'a'
    if name in of.named:
        return code(place, of.named[name])
    if name in of.structs:
        QUEUE.append((place, name))
        return f'{place}:{name}'
    return 's'


def fields(path, name):
    out = []
    for line in package(path).structs[name].split('\n'):
        line = line.split('//')[0].strip() if not '`' in line else line.strip()
        if not line or line.startswith('//'):
            continue
        found = re.match(r'^(?:(\w+(?:, \w+)*)\s+)?([\w\.\*\[\]]+(?:\{\})?)\s*(?:`([^`]*)`)?\s*(?://.*)?$', line)
        if not found:
            continue
        names, type_name, tags = found.groups()
        tag = re.search(r'json:"([^"]*)"', tags or '')
        tag = tag[1].split(',') if tag else ['']
        if names is None or tag[1:] == ['inline']:
            if type_name.endswith('TypeMeta'):
                continue
            if type_name.endswith('.ObjectMeta'):
                out.append(('+', 'meta:ObjectMeta', ''))
                continue
            place, of = path, type_name.lstrip('*')
            if '.' in of:
                alias, of = of.split('.')
                place = package(path).imports[alias]
            while of in package(place).named:
                of = package(place).named[of]
            out += fields(place, of)
            continue
        for one in names.split(', '):
            if not one[0].isupper() or tag[0] == '-':
                continue
            omit = ' ?' if 'omitempty' in tag or 'omitzero' in tag else ''
            out.append((tag[0] or one, code(path, type_name), omit))
    return out


def main():
    for group, path in GROUPS.items():
        of = package(path)
        for name in sorted(of.structs):
            if 'ObjectMeta' in of.structs[name] and 'TypeMeta' in of.structs[name]:
                QUEUE.append((path, name))
    QUEUE.append((META, 'ObjectMeta'))
    while QUEUE:
        place = QUEUE.pop()
        if place not in TYPES:
            TYPES[place] = None
            TYPES[place] = fields(*place)
    groups = {path: group for group, path in GROUPS.items()}
    alias = lambda path: 'meta' if path == META else path.rsplit('/', 1)[1]
    lines = ['# Generated by tools/schema-table/internal_types.py: do not edit.']
    last = None
    for (path, name), rows in sorted(TYPES.items()):
        if path != last:
            lines.append(f'@{alias(path)} {groups.get(path, "-") or "core"}')
            last = path
        lines.append(name)
        for field, of, omit in rows:
            of = re.sub(r'[\w/\.\-]+/[\w/\.\-]+:', lambda m: '' if m[0][:-1] == path else alias(m[0][:-1]) + ':', of) if '/' in of else of
            lines.append(f' {field} {of}{omit}')
    text = '\n'.join(lines) + '\n'
    if ARGUMENTS.check:
        sys.exit(open(TABLE).read() != text)
    open(TABLE, 'w').write(text)


main()
