"""What no schema checks in rendered Kubernetes objects: `rendered.py FILE...`. Needs PyYAML."""

import pathlib
import re
import sys

import yaml

SECRET_KEYS = {"nats-run-password", "nats-worker-password", "metrics-token", "tinker-api-key"}


def main(path: str) -> None:
    objects = [o for o in yaml.safe_load_all(pathlib.Path(path).read_text()) if o]
    named = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    assert len(named) == len(objects), "two objects have the same name"
    labels = []
    for (kind, name), o in named.items():
        assert o["metadata"].get("namespace", "minds") == "minds", f"{kind} {name}: another namespace"
        template = o["spec"].get("template") if kind in ("Deployment", "StatefulSet", "Job") else None
        if template is None:
            continue
        labels.append(template["metadata"]["labels"])
        pod = template["spec"]
        [container] = pod["containers"]
        where = f"{kind} {name}"

        assert pod["securityContext"]["runAsNonRoot"], where
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert pod["automountServiceAccountToken"] is False, where
        assert container["securityContext"]["readOnlyRootFilesystem"], where
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, where
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, where
        assert {"requests", "limits"} <= container["resources"].keys(), where

        grace = re.search(r"--grace=(\d+)", " ".join(container.get("args", [])))
        if grace:
            assert pod["terminationGracePeriodSeconds"] > int(grace[1]), f"{where}: killed within --grace"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in o["spec"].get("volumeClaimTemplates", [])}
        assert mounted == volumes, f"{where}: mounts {mounted}, has {volumes}"
        for volume in pod.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in named, f"{where}: {volume}"
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in named, where
        for variable in container.get("env", []):
            secret = variable.get("valueFrom", {}).get("secretKeyRef")
            assert not secret or (secret["name"] == "minds" and secret["key"] in SECRET_KEYS), f"{where}: {secret}"

    # Whatever selects pods selects one kind of them.
    for (kind, name), o in named.items():
        selector = o["spec"].get("selector", {}) if kind in ("Service", "PodDisruptionBudget") else None
        if kind == "NetworkPolicy":
            selector = o["spec"]["podSelector"]
        if not selector:
            continue
        wanted = selector.get("matchLabels", selector)
        assert sum(wanted.items() <= have.items() for have in labels) == 1, f"{kind} {name} selects {wanted}"

    # An autoscaler and a fixed number of replicas undo each other.
    scaled = [o["spec"]["scaleTargetRef"]["name"] for (kind, _), o in named.items()
              if kind in ("HorizontalPodAutoscaler", "ScaledObject")]
    for name in scaled:
        assert "replicas" not in named["Deployment", name]["spec"], f"{name} has a fixed number of replicas"
    servers = named["StatefulSet", "minds-nats"]["spec"]["replicas"]
    run = named["Job", "minds-run"]["spec"]["template"]["spec"]["containers"][0]
    copies = {v["name"]: v.get("value") for v in run["env"]}["MINDS_NATS__REPLICAS"]
    assert int(copies) == servers, f"{copies} copies on {servers} servers"
    print(f"{path}: {len(objects)} objects")


for file in sys.argv[1:]:
    main(file)
