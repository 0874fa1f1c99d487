"""Drawings of graphs: text for terminals, Mermaid for everything else."""

from weft.core.graph.compile import compile
from weft.core.graph.drawing import draw
from weft.core.graph.mermaid import to_mermaid
from weft.core.graph.validate import check_document, check_text

REPORT = """
name: report
version: "1.2"
output: "${save}"
nodes:
  fetch:    {type: http, url: "${input.url}"}
  classify: {type: task, call: classify, after: [fetch], map: "fetch.body.pages"}
  count:    {type: transform, value: "${size(fetch.body.pages)}", after: fetch}
  group:    {type: gather, after: [classify], group_by: "item.kind"}
  route:    {type: branch, after: [group, count], cases: [{when: 'size(group) > 3 && "x" < "y"', to: review}], default: save}
  review:   {type: approval, approvers: [ops]}
  save:     {type: task, call: save, after: [review, route], join: any, on_error: continue}
  again:    {type: loop, after: [save], while: "save.retry", to: save, max_iterations: 3}
  notify:   {type: agent, after: [again], agent: writer, prompt: "Summarise ${save}", when: "input.loud"}
"""


def plan_of(text):
    (checked,) = check_text(text)
    return compile(checked.valid())


def test_chains_go_down_sides_are_set_in_and_joins_come_back():
    assert (
        draw(plan_of(REPORT))
        == """\
report 1.2  9 nodes

fetch        http       GET ${input.url}
├─ classify  task       classify; for each of fetch.body.pages
│  group     gather     by item.kind
└─ count     transform  ${size(fetch.body.pages)}
route        branch     to review when size(group) > 3 && "x" < "y", else save; after group, count
└─ review    approval   by 1 of ops
save         task       save; join any; on error continue; after review, route
again        loop       back to save while save.retry, 3 times at most
notify       agent      writer; when input.loud

output  ${save}"""
    )


def test_mermaid_has_every_node_and_edge_and_escapes_what_means_something_there():
    text = to_mermaid(plan_of(REPORT))

    assert text.startswith("flowchart TD\n")
    assert '  n4 -->|"size(group) #gt; 3 #38;#38; #quot;x#quot; #lt; #quot;y#quot;"| n5' in text
    assert '  n4 -->|"else"| n6' in text
    assert '  n7 -.->|"while save.retry"| n6' in text
    assert text.count("-->") == 10


def test_several_beginnings_and_one_node():
    step = {"type": "wait", "duration": "5s"}
    assert draw(compile(check_document({"name": "x", "nodes": {"a": step}}).valid())) == "x  1 node\n\na  wait  for 5s"
    nodes = {"a": step, "b": step, "c": {**step, "after": ["a", "b"]}}
    assert draw(compile(check_document({"name": "x", "nodes": nodes}).valid())).splitlines()[2:] == [
        "├─ a  wait  for 5s",
        "└─ b  wait  for 5s",
        "c     wait  for 5s; after a, b",
    ]


def test_long_values_are_cut_and_large_graphs_listed():
    nodes = {"a": {"type": "transform", "value": "x\n" * 100}}
    nodes |= {f"n{i}": {"type": "transform", "value": 1, "after": [f"n{i - 1}" if i else "a"]} for i in range(1_200)}

    lines = draw(compile(check_document({"name": "x", "nodes": nodes}).valid())).splitlines()

    assert len(lines) == 1_203 and max(map(len, lines)) < 120
    assert lines[2].endswith("x x…")
    assert "after n1198" in lines[-1]


def test_an_output_of_several_values_is_written_as_json():
    text = 'name: g\noutput: {b: "${a}", c: [1, null]}\nnodes:\n  a: {type: transform, value: {x: true}}\n'
    assert draw(plan_of(text)).splitlines()[2:] == [
        'a  transform  {"x":true}',
        "",
        'output  {"b":"${a}","c":[1,null]}',
    ]
