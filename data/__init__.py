"""EM volumes: reading and writing, regions and blocks, patch sampling, augmentation, targets, a phantom."""
from data.augment import Augmentation
from data.errors import DataError
from data.normalise import Standardisation, as_float, scale_map, scaled_map, standardised
from data.roi import Block, Roi, blocks
from data.sampling import Patch, PatchSampler, in_memory
from data.source import ClassCounts, Source, class_counts
from data.targets import BOUNDARY, IGNORE, INTERIOR, boundary_target
from data.volume import Volume, common_roi
from data.workers import patches
from data.writing import write_volume

__all__ = [
    "BOUNDARY", "IGNORE", "INTERIOR", "Augmentation", "Block", "ClassCounts", "DataError", "Patch", "PatchSampler",
    "Roi", "Source", "Standardisation", "Volume", "as_float", "blocks", "boundary_target",
    "class_counts", "common_roi", "in_memory", "patches", "scale_map", "scaled_map", "standardised",
    "write_volume",
]
