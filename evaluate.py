"""Score a boundary map or a segmentation against the truth, see docs/evaluation.md:

python evaluate.py prediction=boundary.h5 truth=stack.h5 output=scores/ z_range=[25,30]
"""
import sys
import time

from tqdm import tqdm

from conf.entry import command
from znn.pipeline.boundary_scores import expected_thresholds
from znn.pipeline.evaluation import evaluate, evaluate_segments
from znn.pipeline.memory import GB, peak_memory
from znn.pipeline.pairing import load
from znn.pipeline.report import check_output, format_compared, format_table, format_values, write_report


@command("evaluate")
def main(settings):
    """Read, score, write the report and print it; `settings` is a `conf.schema.Evaluate`."""
    started = time.perf_counter()
    case = load(settings)
    check_output(settings.output, settings.overwrite)
    total = expected_thresholds(settings.coarse_step, settings.fine_step) if case.kind == "boundary" else 0
    with tqdm(total=total, desc="thresholds", unit="", disable=not total) as bar:
        report, pictures = evaluate(case, settings, settings.overlay_sections, settings.worst, bar.update)
    written = []
    if settings.segment.method != "none":
        report["segmentation"], path = evaluate_segments(case, settings, settings.output)
        written.append(path)
    written += write_report(settings.output, report, pictures)
    print(format_table(report))
    if "at_threshold" in report:
        print(format_values(f"at the threshold {case.threshold:g}", report["at_threshold"]))
    if "segmentation" in report:
        made = report["segmentation"]
        print(format_values(f"{made['segments']} segments by {made['method']}", made))
    seconds = time.perf_counter() - started
    print(f"compared: {format_compared(report)}")
    share = report["region"]["share_of_truth"]
    if share < 1:
        print(f"warning: the prediction covers {share:.1%} of the truth, and no more is scored; "
              "check offset and extent, or name the sections by z_range", file=sys.stderr)
    print(f"written: {', '.join(str(path) for path in written)} "
          f"({case.truth.scored.size / seconds:.3g} voxels/s, {seconds:.1f} s, "
          f"peak memory {peak_memory() / GB:.2f} GB)")


if __name__ == "__main__":
    main()
