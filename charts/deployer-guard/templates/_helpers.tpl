{{- define "deployer-guard.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of all objects: at most 40 characters, so that what is added to it still is a name. */}}
{{- define "deployer-guard.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "deployer-guard.selectorLabels" -}}
app.kubernetes.io/name: {{ include "deployer-guard.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "deployer-guard.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "deployer-guard.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "deployer-guard.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "deployer-guard.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the ServiceAccount that you made, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "deployer-guard.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "deployer-guard.secretName" -}}
{{- if eq .Values.certificates.mode "secret" -}}
{{- required "certificates.secretName: name the Secret that holds tls.crt, tls.key and ca.crt" .Values.certificates.secretName -}}
{{- else -}}
{{- /* Another for each maker: Helm deletes its own while cert-manager fills the other, and cannot adopt what cert-manager leaves behind. */}}
{{- $made := ternary "certificate" "tls" (eq .Values.certificates.mode "cert-manager") }}
{{- default (printf "%s-%s" (include "deployer-guard.fullname" .) $made) .Values.certificates.secretName -}}
{{- end -}}
{{- end -}}

{{- define "deployer-guard.selfManaged" -}}
{{- if and (eq .Values.certificates.mode "self-managed") .Values.guard.enabled }}true{{ end -}}
{{- end -}}

{{/* What a container may not do: the same for all of ours. */}}
{{- define "deployer-guard.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* The user is the image's own, 65532: OpenShift gives each namespace another. */}}
{{- define "deployer-guard.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Kinds of owners that policies read: {apiGroup, resource, wake}. */}}
{{- define "deployer-guard.owners" -}}
{{- $owners := list -}}
{{- with .Values.policies.openshift -}}
{{- if .enabled -}}
{{- $owners = append $owners (dict "apiGroup" "" "resource" "replicationcontrollers" "wake" (eq .wake "OnRelease")) -}}
{{- end -}}
{{- end -}}
{{- if .Values.policies.spinnaker.enabled -}}
{{- $owners = append $owners (dict "apiGroup" "batch" "resource" "jobs" "wake" false) -}}
{{- end -}}
{{- toYaml (concat $owners .Values.rbac.owners) -}}
{{- end -}}

{{/* Flags that webhook and guard must have alike. */}}
{{- define "deployer-guard.commonArgs" -}}
- --pending-window={{ .Values.pendingWindow }}
{{- with .Values.apiServerRequestTimeout }}
- --api-server-request-timeout={{ . }}
{{- end }}
- --connect-timeout={{ .Values.connectTimeout }}
- --log-level={{ .Values.logs.level }}
- --log-format={{ .Values.logs.format }}
{{- end -}}

{{- define "deployer-guard.env" -}}
- name: DEPLOYER_GUARD_INSTANCE
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end -}}

{{/* Annotations of what is there for a moment alone: list EVENT WEIGHT LOGGED. */}}
{{- define "deployer-guard.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- if index . 2 }}
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}
{{- end -}}

{{/* A duration in microseconds. */}}
{{- define "deployer-guard.microseconds" -}}
{{- $factors := dict "ms" 1000 "s" 1000000 "m" 60000000 "h" 3600000000 -}}
{{- $all := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $all = addf $all (mulf (trimSuffix $unit .) (get $factors $unit)) -}}
{{- end -}}
{{- printf "%.0f" $all -}}
{{- end -}}
