"""Static checks: each looks at a draft and reports faults; running is not their business."""
