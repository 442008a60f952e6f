"""Make codes in three ways, two of them from vectors, and print the doctor's verdict on each."""

import numpy as np

from callslip.identifiers import HierarchicalKMeans, ResidualQuantizer, doctor, quality, random_codes

vectors = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
for name, codes in {
    "random": random_codes(500, length=3, width=16, seed=0),
    "k-means tree": HierarchicalKMeans(width=8, length=3, seed=0).fit(vectors),
    "residual": ResidualQuantizer(width=16, length=3, seed=0).fit(vectors),
}.items():
    figures = quality.measure(codes)
    verdict = doctor.verdict(doctor.diagnose(figures))
    print(f"{name:<14} {verdict:<8} {figures.unique} codes, largest bucket {figures.bucket_max}")
