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

__all__ = ["Augmentation", "DataError", "Standardisation", "as_float", "scale_map", "scaled_map", "standardised",
           "Block", "Roi", "blocks", "Patch", "PatchSampler", "in_memory", "ClassCounts", "Source", "class_counts",
           "BOUNDARY", "IGNORE", "INTERIOR", "boundary_target", "Volume", "common_roi", "patches", "write_volume"]
