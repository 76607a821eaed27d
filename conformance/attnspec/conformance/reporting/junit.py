"""A report as JUnit XML: one test per operation and dtype, one failure per violation."""

from collections import defaultdict
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from attnspec.conformance.judging.foreign_calls import printable
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.reporting.report import Report, key


def as_junit(report: Report) -> str:
    """Return the report as JUnit XML; a run that judged nothing is one test with an error."""
    cases: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for r in report.results:
        if r.status is not Status.NOT_PROVIDED:
            cases[r.operation, r.dtype].append(r)
    suite = Element("testsuite", name=report.contract.name, time=f"{report.seconds:.3f}")
    violations = {key(r) for r in report.violations}
    for (operation, dtype), results in cases.items():
        test = SubElement(suite, "testcase", classname=operation, name=dtype)
        for r in results:
            if key(r) in violations:
                failure = SubElement(test, "failure", type=str(r.reason), message=r.law)
                failure.text = "\n".join(map(printable, r.message.splitlines()))
        lost = [r.message for r in results if r.interrupted or r.unchecked]
        if not len(test) and lost:
            SubElement(test, "error", message=lost[0])
    if report.reason is not None and not cases:
        SubElement(SubElement(suite, "testcase", name="attnspec check"), "error", message=report.reason)
    for count, kind in (("tests", "testcase"), ("failures", "testcase/failure"), ("errors", "testcase/error")):
        suite.set(count, str(len(suite.findall(kind))))
    indent(suite)
    text: bytes = tostring(suite, encoding="utf-8", xml_declaration=True)
    return text.decode("utf-8") + "\n"
