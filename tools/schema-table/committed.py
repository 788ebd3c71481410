"""The wire facts of the committed field tables: what no published file tells and only Go's sources have.

Used by `generate.py` where no Kubernetes sources are at hand: how Go holds each field (pointer, omitempty, inlined
structs) and its protobuf number stay as they are in the tables; everything that is published is read anew.
"""


class Field:
    pass


def parse_node(text, f):
    """`[name]core.v1:Container` -> ('list', ('raw', 'core.v1:Container')), with the outermost marks noted in `f`."""
    top = not hasattr(f, 'list_type')
    if top:
        f.list_type, f.map_keys, f.map_type = None, [], None
    if text[0] in '[{':
        close = text.index(']' if text[0] == '[' else '}')
        mark, rest = text[1:close], text[close + 1:]
        if top and text[0] == '[':
            f.list_type = {'': None, '!': 'atomic', 'set': 'set'}.get(mark, 'map')
            f.map_keys = mark.split(',') if f.list_type == 'map' else []
        elif top:
            f.map_type = {'': None, '!': 'atomic', '~': 'granular'}[mark]
        return ('list' if text[0] == '[' else 'map', parse_node(rest, f))
    if text.endswith('~'):
        f.map_type, text = 'granular', text[:-1]
    return ('raw', text)


def parse_field(line):
    name, node, place, *flags = line.split(' ')
    f = Field()
    f.name, f.type = name, parse_node(node, f)
    *inside, proto = place.split('.')
    f.inside, f.proto = tuple(int(n) for n in inside), int(proto)
    # A default may hold spaces: it is the rest of the line.
    text = line.split(' =', 1)
    f.default, flags = (text[1], text[0].split(' ')[3:]) if len(text) == 2 else (None, flags)
    f.required, f.pointer, f.wrapped = '!' in flags, '*' in flags, 'w' in flags
    f.omit, f.omit_zero = '?' in flags, 'z' in flags
    f.or_ = next((flag for flag in flags if flag in ('oa', 'ob', 'os')), '')
    f.patch = [word for flag, word in (('r', 'retainKeys'), ('m', 'merge'), ('R', 'replace')) if flag in flags]
    f.merge_key = next((flag[2:] for flag in flags if flag.startswith('m=')), None)
    if 'A' in flags:
        f.list_type = 'atomic'
    return f


def read(path):
    """The sections of a table: [(header, [(type name, its flags, its fields)])]."""
    sections = []
    for line in open(path):
        line = line.rstrip('\n')
        if line.startswith('@'):
            sections.append((line, []))
        elif line.startswith(' '):
            sections[-1][1][-1][2].append(parse_field(line[1:]))
        elif line and not line.startswith('#'):
            name, *flags = line.split(' ')
            sections[-1][1].append((name, flags, []))
    return sections
