"""Images that are in two places are counted, and no others."""

from dataclasses import replace

from fedmt.data.overlap import overlaps


def test_nothing_in_common(make_federation):
    assert overlaps(make_federation()) == []


def test_a_test_that_is_trained_on_and_centers_that_share_images(make_federation):
    federation = make_federation()
    reference, (one, two, three) = federation.reference, federation.centers
    images = federation.tests[0].images.clone()
    images[:7] = reference.images[3:10]
    images[7] = two.images[0]
    images[8] = three.images[0].flip(-1)  # the same sum, but another image
    tests = tuple(replace(t, values=images) for t in federation.tests)
    shared = three.images.clone()
    shared[5:9] = one.images[:4]
    found = overlaps(replace(federation, tests=tests, centers=(one, two, replace(three, values=shared))))
    assert len(found) == 2  # the tests in other spaces have the same images
    assert found[0].startswith("test: some of its 500 images are also used for training")
    assert found[0].endswith(": 7 at 'reference', 1 at 'center-2'.")
    assert found[1] == "Images that two centers have: 4 of 'center-1' and 'center-3'."
