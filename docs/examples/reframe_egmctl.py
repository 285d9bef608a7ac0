"""egmctl as ReFrame tests: reframe -C SITE.py -c reframe_egmctl.py -r (ReFrame 4).

The doctor has to find nothing wrong; of the bench, the verdict has to be no failure, and the medians of the path
classes are kept as performance variables, which ReFrame logs, and compares with references where you add them.
"""

import json
import os

import reframe as rfm
import reframe.utility.sanity as sn


class Egmctl(rfm.RunOnlyRegressionTest):
    """What the tests share: one task that has the whole node."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    num_tasks = 1
    exclusive_access = True
    time_limit = "10m"
    executable = "egmctl"

    def document(self, name):
        """Return the document that the run left in its stage directory."""
        with open(os.path.join(self.stagedir, name)) as file:
            return json.load(file)

    def is_not_bad(self, name):
        """Return the check that the answer is not that something is wrong; the sentence says what is."""
        answer = self.document(name)["answer"]
        return sn.assert_ne(answer["state"], "bad", msg=f"{answer['word']}: {answer['sentence']}; see {name}")


@rfm.simple_test
class EgmctlDoctor(Egmctl):
    """Nothing stops EGM, P2P, IPC and fabric handles."""

    executable_opts = ["doctor", "--mpi", "off", "-o", "doctor.json"]
    keep_files = ["doctor.json"]

    @sanity_function
    def nothing_is_wrong(self):
        return self.is_not_bad("doctor.json")


@rfm.simple_test
class EgmctlBench(Egmctl):
    """Every path class is as fast as the profile of this kind of machine expects."""

    executable_opts = ["bench", "--mpi", "off", "--quick", "-o", "bench.json"]
    keep_files = ["bench.json"]

    @sanity_function
    def nothing_is_slow(self):
        return self.is_not_bad("bench.json")

    @run_before("performance")
    def medians(self):
        classes = self.document("bench.json")["result"]["verdict"]["classes"]
        self.perf_variables = {
            f"{one['case']} over {one['link']}": sn.make_performance_function(sn.defer(one["median"]), one["unit"])
            for one in classes
            if one["median"] is not None
        }
