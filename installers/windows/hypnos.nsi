; Installs Hypnos for one user of Windows, without administrator's rights. setup_program.py gives the values in ${...}.
Unicode True
!include "MUI2.nsh"

Name "Hypnos"
OutFile "${OUTFILE}"
RequestExecutionLevel user
InstallDir "$LOCALAPPDATA\Programs\Hypnos"
InstallDirRegKey HKCU "Software\Hypnos" "InstallLocation"
SetCompressor ${COMPRESSOR}
SetDateSave off
ManifestDPIAware true
BrandingText "Hypnos ${VERSION}"
VIProductVersion "${VERSION}.0"
VIAddVersionKey "ProductName" "Hypnos"
VIAddVersionKey "ProductVersion" "${VERSION}"
VIAddVersionKey "FileVersion" "${VERSION}"
VIAddVersionKey "FileDescription" "Hypnos setup"
VIAddVersionKey "LegalCopyright" "The Hypnos authors, Apache License 2.0"

!define UNINSTALL_KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\Hypnos"
!define RUN_KEY "Software\Microsoft\Windows\CurrentVersion\Run"
!define MUI_ICON "${ICON}"
!define MUI_UNICON "${ICON}"
!define MUI_FINISHPAGE_RUN "$INSTDIR\hypnos.exe"
!insertmacro MUI_PAGE_LICENSE "${LICENCE}"
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"

; A program that runs cannot be opened for writing.
!macro RefuseWhileRunning PREFIX
Function ${PREFIX}RefuseWhileRunning
    again:
    IfFileExists "$INSTDIR\hypnos.exe" 0 done
    ClearErrors
    FileOpen $0 "$INSTDIR\hypnos.exe" a
    IfErrors busy
    FileClose $0
    Goto done
    busy:
    MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "Hypnos is running. Quit it from its tray icon, then try again." /SD IDCANCEL IDRETRY again
    Abort
    done:
FunctionEnd
!macroend
!insertmacro RefuseWhileRunning ""
!insertmacro RefuseWhileRunning "un."

Section "Hypnos"
    Call RefuseWhileRunning
    IfFileExists "$INSTDIR\uninstall.exe" 0 fresh
    ; An update takes the files of the earlier version away first; models and settings are elsewhere.
    ExecWait '"$INSTDIR\uninstall.exe" /S _?=$INSTDIR'
    fresh:
    SetOutPath "$INSTDIR"
    File /r "${PAYLOAD}/*.*"
    WriteUninstaller "$INSTDIR\uninstall.exe"
    CreateShortCut "$SMPROGRAMS\Hypnos.lnk" "$INSTDIR\hypnos.exe"
    WriteRegStr HKCU "Software\Hypnos" "InstallLocation" "$INSTDIR"
    WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayName" "Hypnos"
    WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayVersion" "${VERSION}"
    WriteRegStr HKCU "${UNINSTALL_KEY}" "DisplayIcon" "$INSTDIR\hypnos.exe"
    WriteRegStr HKCU "${UNINSTALL_KEY}" "Publisher" "The Hypnos authors"
    WriteRegStr HKCU "${UNINSTALL_KEY}" "InstallLocation" "$INSTDIR"
    WriteRegStr HKCU "${UNINSTALL_KEY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
    WriteRegStr HKCU "${UNINSTALL_KEY}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
    WriteRegDWORD HKCU "${UNINSTALL_KEY}" "EstimatedSize" ${KILOBYTES}
    WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoModify" 1
    WriteRegDWORD HKCU "${UNINSTALL_KEY}" "NoRepair" 1
SectionEnd

Section "Uninstall"
    Call un.RefuseWhileRunning
    ; Only what came with it: whatever else lies in the folder is the user's.
    !include "${REMOVALS}"
    Delete "$INSTDIR\uninstall.exe"
    RMDir "$INSTDIR"
    Delete "$SMPROGRAMS\Hypnos.lnk"
    DeleteRegKey HKCU "${UNINSTALL_KEY}"
    DeleteRegKey HKCU "Software\Hypnos"
    DeleteRegValue HKCU "${RUN_KEY}" "Hypnos"
SectionEnd
