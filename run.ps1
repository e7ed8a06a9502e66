# Sets Hypnos up when that is needed, then starts it: see `./run.ps1 --help`. All decisions are in installers/bootstrap.py.
$ErrorActionPreference = 'Stop'

function Test-Python([string[]] $Command) {
    $program = $Command[0]
    $options = @($Command | Select-Object -Skip 1)
    if (-not (Get-Command $program -ErrorAction SilentlyContinue)) { return $false }
    try {
        & $program @options -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>$null | Out-Null
        return $LASTEXITCODE -eq 0
    } catch {
        return $false
    }
}

# The one in .venv is not tried: Windows cannot replace an interpreter that is running.
$candidates = @(@('py', '-3.13'), @('py', '-3.12'), @('py', '-3.11'), @('python'), @('python3'))
if ($env:PYTHON) { $candidates = @(, @($env:PYTHON)) }
$python = $null
foreach ($candidate in $candidates) {
    if (Test-Python $candidate) { $python = $candidate; break }
}
if (-not $python) {
    [Console]::Error.WriteLine('Hypnos needs Python 3.11, 3.12 or 3.13: run `winget install Python.Python.3.13`, or set PYTHON to its path.')
    exit 2
}

$program = $python[0]
$options = @($python | Select-Object -Skip 1)
& $program @options -B (Join-Path $PSScriptRoot 'installers\bootstrap.py') @args
exit $LASTEXITCODE
